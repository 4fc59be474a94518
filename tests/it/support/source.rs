//! Our own source, read as text: what is code in it, which paths it names, what in it is for tests.
//!
//! It owns just enough of Rust's grammar for the rules of `architecture.rs`. It does not own the rules, and it does not
//! expand macros.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Words after which `::` begins a path instead of going on with one.
const LEADERS: &[&str] = &["as", "dyn", "for", "impl", "in", "mut", "return", "use"];

/// What a rule has found at a line of a file.
pub struct Finding {
    pub line: usize,
    pub what: String,
}

/// Every file of `src`, those that this build leaves out included.
pub fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![];
    collect(&root.join("src"), &mut files);
    let mut sources: Vec<Source> = files
        .iter()
        .map(|file| {
            let path = file.strip_prefix(root).expect("it was found below it").display().to_string();
            Source::new(&path, &fs::read_to_string(file).expect("source is UTF-8"))
        })
        .collect();
    mark_test_files(&mut sources);
    sources
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(folder)
        .expect("a folder of src")
        .map(|entry| entry.expect("an entry of it").path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// A file that is declared as `#[cfg(test)] mod tests;` elsewhere is test code from its first line.
pub fn mark_test_files(sources: &mut [Source]) {
    let test_modules: BTreeSet<Vec<String>> = sources.iter().flat_map(Source::test_modules).collect();
    for source in sources {
        let module = source.module.clone().unwrap_or_default();
        if (1..=module.len()).any(|length| test_modules.contains(&module[..length])) {
            source.tokens.iter_mut().for_each(|token| token.in_test = true);
        }
    }
}

/// One file of `src`, as the rules see it.
pub struct Source {
    pub path: String,
    pub text: String,
    pub tokens: Vec<Token>,
    /// Where the file is in the crate: `src/store/backend/mod.rs` is `store::backend`. None: the binary's root.
    pub module: Option<Vec<String>>,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        let mut tokens = tokens_of(text);
        mark_test_items(&mut tokens);
        let inner = path.trim_start_matches("src/").trim_end_matches(".rs");
        let mut module: Vec<String> = inner.split('/').map(str::to_owned).collect();
        if module.last().is_some_and(|last| last == "mod") || module == ["lib"] {
            module.pop();
        }
        let module = (inner != "main").then_some(module);
        Source { path: path.to_owned(), text: text.to_owned(), tokens, module }
    }

    /// Whether this is one of these modules or below it: `src/store` is `src/store.rs` and `src/store/…`.
    pub fn is_in(&self, modules: &[&str]) -> bool {
        modules.iter().any(|module| {
            let rest = self.path.strip_prefix(module);
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    }

    pub fn words(&self, wanted: impl Fn(&str) -> bool) -> Vec<Finding> {
        let words = self.tokens.iter().filter(|token| token.kind == Kind::Word && wanted(&token.text));
        words.map(|token| token.finding(format!("`{}`", token.text))).collect()
    }

    pub fn is_mark(&self, at: usize, mark: &str) -> bool {
        self.tokens.get(at).is_some_and(|token| token.is_mark(mark))
    }

    pub fn is_word(&self, at: usize, word: &str) -> bool {
        self.tokens.get(at).is_some_and(|token| token.is_word(word))
    }

    pub fn closing(&self, open: usize) -> usize {
        closing(&self.tokens, open)
    }

    /// All paths of the file, those of `use a::{b, c}` one by one.
    pub fn paths(&self) -> Vec<PathUsed> {
        let mut paths = vec![];
        // The inline modules around the current token, each with the token that closes it.
        let mut inside: Vec<(String, usize)> = vec![];
        for (at, token) in self.tokens.iter().enumerate() {
            inside.retain(|(_, end)| at < *end);
            if token.kind != Kind::Word {
                continue;
            }
            if token.text == "mod" && self.is_mark(at + 2, "{") {
                inside.push((self.tokens[at + 1].text.clone(), self.closing(at + 2)));
            }
            // Only where a path begins; `use ::std` begins one, too.
            let follows = at > 1 && self.is_mark(at - 1, "::") && self.tokens[at - 2].kind == Kind::Word;
            if follows && !LEADERS.contains(&self.tokens[at - 2].text.as_str()) {
                continue;
            }
            let inline: Vec<String> = inside.iter().map(|(name, _)| name.clone()).collect();
            self.branch(at, vec![], &inline, &mut paths);
        }
        paths
    }

    /// Follows the path that goes on at `at` to its ends.
    fn branch(&self, mut at: usize, mut segments: Vec<String>, inline: &[String], paths: &mut Vec<PathUsed>) {
        let line = self.tokens[at].line;
        loop {
            segments.push(self.tokens[at].text.clone());
            at += 1;
            if !self.is_mark(at, "::") {
                break;
            }
            let Some(next) = self.tokens.get(at + 1) else {
                break;
            };
            if next.is_mark("{") {
                let end = self.closing(at + 1);
                let mut start = at + 2;
                while start < end {
                    if self.tokens[start].kind == Kind::Word || self.tokens[start].is_mark("*") {
                        self.branch(start, segments.clone(), inline, paths);
                    }
                    start = self.next_in_group(start, end);
                }
                return;
            }
            if next.kind != Kind::Word && !next.is_mark("*") {
                break;
            }
            at += 1;
        }
        let renamed = self.is_word(at, "as");
        paths.push(PathUsed { segments, inline: inline.to_vec(), line, renamed });
    }

    /// The start of the next element of a `{…}` that closes at `end`.
    fn next_in_group(&self, mut at: usize, end: usize) -> usize {
        while at < end && !self.is_mark(at, ",") {
            at = if self.is_mark(at, "{") { self.closing(at) } else { at + 1 };
        }
        at + 1
    }

    /// The path from the root of our crate; None for what is not ours, or is named by an earlier `use`.
    pub fn absolute(&self, path: &PathUsed) -> Option<Vec<String>> {
        let mut segments = path.segments.as_slice();
        if segments.len() > 1 && segments.last().is_some_and(|last| last == "self") {
            segments = &segments[..segments.len() - 1];
        }
        let mut target = match segments.first()?.as_str() {
            "crate" | "fatia" => vec![],
            "self" | "super" => [self.module.clone()?, path.inline.clone()].concat(),
            _ => return None,
        };
        for segment in segments {
            match segment.as_str() {
                "crate" | "fatia" | "self" => {}
                "super" => {
                    target.pop();
                }
                name => target.push(name.to_owned()),
            }
        }
        Some(target)
    }

    /// The modules in files of their own that this file declares for tests only.
    fn test_modules(&self) -> Vec<Vec<String>> {
        let Some(module) = &self.module else { return vec![] };
        let declared = self.tokens.windows(3).filter(|tokens| {
            tokens[0].in_test
                && tokens[0].is_word("mod")
                && tokens[1].kind == Kind::Word
                && tokens[2].is_mark(";")
        });
        declared.map(|tokens| [module.as_slice(), &[tokens[1].text.clone()]].concat()).collect()
    }
}

pub struct PathUsed {
    pub segments: Vec<String>,
    /// The modules within the file that it stands in; `super` counts from there.
    inline: Vec<String>,
    line: usize,
    pub renamed: bool,
}

impl PathUsed {
    pub fn finding(&self, what: String) -> Finding {
        Finding { line: self.line, what }
    }
}

// Just enough of Rust's grammar to tell code from comments and text.

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Word,
    Number,
    /// A string literal, without its quotes.
    Text,
    /// `::`, or one character.
    Mark,
}

#[derive(Debug)]
pub struct Token {
    pub kind: Kind,
    pub text: String,
    pub line: usize,
    pub in_test: bool,
}

impl Token {
    pub fn is_word(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.text == word
    }

    pub fn is_mark(&self, mark: &str) -> bool {
        self.kind == Kind::Mark && self.text == mark
    }

    pub fn finding(&self, what: String) -> Finding {
        Finding { line: self.line, what }
    }
}

struct Reader {
    rest: std::vec::IntoIter<char>,
    line: usize,
}

impl Reader {
    fn peek(&self, ahead: usize) -> char {
        self.rest.as_slice().get(ahead).copied().unwrap_or('\0')
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(ahead, wanted)| self.peek(ahead) == wanted)
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.next()?;
        if next == '\n' {
            self.line += 1;
        }
        Some(next)
    }

    fn skip(&mut self, count: usize) {
        for _ in 0..count {
            self.next();
        }
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while !self.rest.as_slice().is_empty() && wanted(self.peek(0)) {
            text.extend(self.next());
        }
        text
    }

    fn skip_block_comment(&mut self) {
        self.skip(2);
        while !self.rest.as_slice().is_empty() && !self.starts_with("*/") {
            if self.starts_with("/*") {
                self.skip_block_comment();
            } else {
                self.skip(1);
            }
        }
        self.skip(2);
    }

    /// A literal that a backslash escapes in, from its opening quote on.
    fn quoted(&mut self, quote: char) -> String {
        self.skip(1);
        let mut text = String::new();
        while let Some(next) = self.next() {
            if next == quote {
                break;
            }
            text.push(next);
            if next == '\\' {
                text.extend(self.next());
            }
        }
        text
    }

    /// A raw literal from its first `#` or quote on.
    fn raw(&mut self) -> String {
        let hashes = self.take_while(|c| c == '#');
        let end = format!("\"{hashes}");
        self.skip(1);
        let mut text = String::new();
        while !self.rest.as_slice().is_empty() && !self.starts_with(&end) {
            text.extend(self.next());
        }
        self.skip(end.len());
        text
    }

    fn number(&mut self, is_index: bool) -> String {
        let mut text = self.take_while(is_word_part);
        // `1..2` is a range, `1.max(2)` a call, and `pair.0.1` an index: no float in them.
        if !is_index && self.peek(0) == '.' && self.peek(1) != '.' && !is_word_start(self.peek(1)) {
            self.skip(1);
            text.push('.');
            text.push_str(&self.take_while(is_word_part));
        }
        if text.ends_with(['e', 'E']) && !text.starts_with("0x") && matches!(self.peek(0), '+' | '-') {
            text.extend(self.next());
            text.push_str(&self.take_while(is_word_part));
        }
        text
    }
}

fn is_word_start(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}

fn is_word_part(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

pub fn is_float(number: &str) -> bool {
    if ["0x", "0o", "0b"].iter().any(|prefix| number.starts_with(prefix)) {
        return false;
    }
    let rest = number.trim_start_matches(|c: char| c == '_' || c.is_ascii_digit());
    let has_exponent = rest
        .strip_prefix(['e', 'E'])
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(char::is_alphabetic));
    rest.starts_with('.') || rest == "f32" || rest == "f64" || has_exponent
}

fn tokens_of(text: &str) -> Vec<Token> {
    let mut reader = Reader { rest: text.chars().collect::<Vec<_>>().into_iter(), line: 1 };
    let mut tokens: Vec<Token> = vec![];
    while !reader.rest.as_slice().is_empty() {
        let (line, first) = (reader.line, reader.peek(0));
        let (kind, text) = if first.is_whitespace() {
            reader.skip(1);
            continue;
        } else if reader.starts_with("//") {
            reader.take_while(|c| c != '\n');
            continue;
        } else if reader.starts_with("/*") {
            reader.skip_block_comment();
            continue;
        } else if first == '"' {
            (Kind::Text, reader.quoted('"'))
        } else if first == '\'' {
            // 'a' is a character, 'a is a lifetime. Neither is of interest.
            if reader.peek(1) == '\\' || reader.peek(2) == '\'' {
                reader.quoted('\'');
            } else {
                reader.skip(1);
                reader.take_while(is_word_part);
            }
            continue;
        } else if first.is_ascii_digit() {
            let is_index = tokens.last().is_some_and(|token| token.is_mark("."));
            (Kind::Number, reader.number(is_index))
        } else if is_word_start(first) {
            let word = reader.take_while(is_word_part);
            let is_raw = matches!(word.as_str(), "r" | "br" | "cr");
            match reader.peek(0) {
                '"' if is_raw => (Kind::Text, reader.raw()),
                '#' if is_raw && matches!(reader.peek(1), '"' | '#') => (Kind::Text, reader.raw()),
                '#' if word == "r" && is_word_start(reader.peek(1)) => {
                    reader.skip(1);
                    (Kind::Word, reader.take_while(is_word_part))
                }
                '"' if matches!(word.as_str(), "b" | "c") => (Kind::Text, reader.quoted('"')),
                '\'' if word == "b" => (Kind::Text, reader.quoted('\'')),
                _ => (Kind::Word, word),
            }
        } else if reader.starts_with("::") {
            reader.skip(2);
            (Kind::Mark, "::".to_owned())
        } else {
            reader.skip(1);
            (Kind::Mark, first.to_string())
        };
        tokens.push(Token { kind, text, line, in_test: false });
    }
    tokens
}

/// The token that closes the bracket at `open`; the end of the file if none does.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if token.kind != Kind::Mark {
            continue;
        }
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len()
}

/// Marks what `#[cfg(test)]`, `#[test]` and their like stand before.
fn mark_test_items(tokens: &mut [Token]) {
    let mut at = 0;
    while at < tokens.len() {
        let is_inner = tokens.get(at + 1).is_some_and(|token| token.is_mark("!"));
        let open = if is_inner { at + 2 } else { at + 1 };
        let is_attribute =
            tokens[at].is_mark("#") && tokens.get(open).is_some_and(|token| token.is_mark("["));
        if !is_attribute {
            at += 1;
            continue;
        }
        let close = closing(tokens, open);
        if is_for_tests(&tokens[open..close]) {
            let end = if is_inner { tokens.len() } else { end_of_item(tokens, close + 1) };
            tokens[at..end].iter_mut().for_each(|token| token.in_test = true);
        }
        at = close + 1;
    }
}

/// `cfg(test)`, `cfg(all(test, …))`, `test`, `tokio::test`; not `cfg(not(test))`.
fn is_for_tests(attribute: &[Token]) -> bool {
    let words: Vec<&str> =
        attribute.iter().filter(|token| token.kind == Kind::Word).map(|token| token.text.as_str()).collect();
    match words.as_slice() {
        ["cfg", rest @ ..] => rest.contains(&"test") && !rest.contains(&"not"),
        ["test"] | [_, "test", ..] => true,
        _ => false,
    }
}

/// One past the item that begins at `start`: its closing brace or its semicolon.
fn end_of_item(tokens: &[Token], start: usize) -> usize {
    let mut at = start;
    while at < tokens.len() {
        if tokens[at].is_mark("{") {
            return closing(tokens, at) + 1;
        }
        if tokens[at].is_mark(";") {
            return at + 1;
        }
        let opens = tokens[at].is_mark("(") || tokens[at].is_mark("[");
        at = if opens { closing(tokens, at) + 1 } else { at + 1 };
    }
    tokens.len()
}
