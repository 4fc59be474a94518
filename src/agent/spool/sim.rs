//! A disk that fails and loses power where a test says so.
//!
//! What was not made durable is lost with the power, or not: a test chooses how much of it stays.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use super::disk::Disk;

/// Shared by its clones, as a disk is by the processes that open it one after another.
#[derive(Debug, Clone, Default)]
pub(super) struct SimDisk(Rc<RefCell<State>>);

#[derive(Debug, Default)]
struct State {
    files: Vec<File>,
    names: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    /// Changes of names since the folder was last made durable.
    pending: Vec<Change>,
    calls: usize,
    fault: Option<(usize, Fault)>,
    is_off: bool,
}

#[derive(Debug, Default, Clone)]
struct File {
    bytes: Vec<u8>,
    durable: Vec<u8>,
}

#[derive(Debug, Clone)]
enum Change {
    Put(String, usize),
    Move(String, String),
    Remove(String),
}

/// What happens at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It fails once. Of a write, half is there.
    Fail,
    /// The power goes.
    Crash,
}

/// What stays of what was not durable when the power went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stays {
    pub(super) names: Kept,
    pub(super) bytes: Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Nothing,
    /// One byte, or the first change.
    One,
    /// The first half of the bytes, or every second change.
    Half,
    All,
}

impl Kept {
    fn of(self, length: usize) -> usize {
        match self {
            Self::Nothing => 0,
            Self::One => length.min(1),
            Self::Half => length / 2,
            Self::All => length,
        }
    }
}

impl SimDisk {
    pub(super) fn calls(&self) -> usize {
        self.0.borrow().calls
    }

    /// Has the call of this number (from 0) fail.
    pub(super) fn at(&self, call: usize, fault: Fault) {
        self.0.borrow_mut().fault = Some((call, fault));
    }

    pub(super) fn is_off(&self) -> bool {
        self.0.borrow().is_off
    }

    /// Brings the power back with what stayed.
    pub(super) fn power_up(&self, stays: Stays) {
        let mut state = self.0.borrow_mut();
        state.is_off = false;
        for file in &mut state.files {
            file.bytes = match file.bytes.strip_prefix(file.durable.as_slice()) {
                Some(tail) => [&file.durable, &tail[..stays.bytes.of(tail.len())]].concat(),
                None if stays.bytes == Kept::Nothing => file.durable.clone(),
                None => file.bytes.clone(),
            };
            file.durable = file.bytes.clone();
        }
        let mut names = std::mem::take(&mut state.durable);
        let pending = std::mem::take(&mut state.pending);
        let kept = stays.names.of(pending.len());
        for (at, change) in pending.into_iter().enumerate() {
            let stays = if stays.names == Kept::Half { at % 2 == 1 } else { at < kept };
            if stays {
                change.apply(&mut names);
            }
        }
        state.durable = names.clone();
        state.names = names;
    }

    /// A file's bytes, to look at or to damage.
    pub(super) fn edit(&self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.0.borrow_mut();
        let at = state.names[name];
        edit(&mut state.files[at].bytes);
        state.files[at].durable = state.files[at].bytes.clone();
    }

    pub(super) fn files(&self) -> Vec<String> {
        self.0.borrow().names.keys().cloned().collect()
    }

    /// Another disk with the same in it.
    pub(super) fn copy(&self) -> Self {
        let state = self.0.borrow();
        let copy = State {
            files: state.files.clone(),
            names: state.names.clone(),
            durable: state.durable.clone(),
            pending: state.pending.clone(),
            ..State::default()
        };
        Self(Rc::new(RefCell::new(copy)))
    }

    fn call<T>(
        &self,
        run: impl FnOnce(&mut State) -> io::Result<T>,
        broken: impl FnOnce(&mut State, Fault),
    ) -> io::Result<T> {
        let mut state = self.0.borrow_mut();
        if state.is_off {
            return Err(io::Error::other("no power"));
        }
        let call = state.calls;
        state.calls += 1;
        if let Some((_, fault)) = state.fault.filter(|(at, _)| *at == call) {
            state.fault = None;
            broken(&mut state, fault);
            state.is_off = fault == Fault::Crash;
            return Err(io::Error::other(format!("{fault:?} at {call}")));
        }
        run(&mut state)
    }
}

impl Change {
    fn apply(self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Put(name, file) => drop(names.insert(name, file)),
            Self::Move(from, to) => {
                if let Some(file) = names.remove(&from) {
                    names.insert(to, file);
                }
            }
            Self::Remove(name) => drop(names.remove(&name)),
        }
    }
}

impl State {
    fn file(&mut self, name: &str) -> io::Result<&mut File> {
        let at = *self.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(&mut self.files[at])
    }

    fn change(&mut self, change: Change) {
        change.clone().apply(&mut self.names);
        self.pending.push(change);
    }
}

fn nothing(_: &mut State, _: Fault) {}

impl Disk for SimDisk {
    fn list(&mut self) -> io::Result<Vec<String>> {
        self.call(|state| Ok(state.names.keys().cloned().collect()), nothing)
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        self.call(|state| Ok(state.file(name)?.bytes.clone()), nothing)
    }

    fn read_at(&mut self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let offset = usize::try_from(offset).unwrap();
        self.call(
            |state| {
                let bytes = &state.file(name)?.bytes;
                let found = bytes.get(offset..offset + length).map(<[u8]>::to_vec);
                found.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
            },
            nothing,
        )
    }

    fn create(&mut self, name: &str) -> io::Result<()> {
        let change = |state: &mut State| {
            let at = state.files.len();
            state.files.push(File::default());
            state.change(Change::Put(name.to_owned(), at));
        };
        self.call(
            |state| {
                change(state);
                Ok(())
            },
            nothing,
        )
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.call(
            |state| {
                state.file(name)?.bytes.extend(bytes);
                Ok(())
            },
            |state, fault| {
                let written = if fault == Fault::Crash { bytes.len() } else { bytes.len() / 2 };
                if let Ok(file) = state.file(name) {
                    file.bytes.extend(&bytes[..written]);
                }
            },
        )
    }

    fn truncate(&mut self, name: &str, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).unwrap();
        self.call(
            |state| {
                state.file(name)?.bytes.truncate(length);
                Ok(())
            },
            nothing,
        )
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.call(
            |state| {
                let file = state.file(name)?;
                file.durable = file.bytes.clone();
                Ok(())
            },
            nothing,
        )
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        self.call(
            |state| {
                state.pending.clear();
                state.durable = state.names.clone();
                Ok(())
            },
            nothing,
        )
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.call(
            |state| {
                state.file(from)?;
                state.change(Change::Move(from.to_owned(), to.to_owned()));
                Ok(())
            },
            nothing,
        )
    }

    fn unlink(&mut self, name: &str) -> io::Result<()> {
        self.call(
            |state| {
                state.file(name)?;
                state.change(Change::Remove(name.to_owned()));
                Ok(())
            },
            nothing,
        )
    }
}
