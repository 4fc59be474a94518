//! Rules of windows.
