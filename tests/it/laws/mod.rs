//! Laws as properties.
