//! One fact: the value, the file that it stands in, or why there is none.

use std::io;

use serde::{Serialize, Serializer};

use super::Root;
use crate::error::Error;

/// Why a fact has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unread {
    /// The kernel has no such file: this host has nothing of the kind.
    Absent,
    /// It is there, but was not to be read, or makes no sense: the reason.
    Failed(String),
}

/// A value together with where it comes from. In JSON it is the value; `null` where the host has
/// nothing of the kind; `{"unread": WHY}` where it could not be read.
#[derive(Debug, Clone, PartialEq)]
pub struct Fact<T> {
    /// The file, as on a running system.
    pub path: String,
    /// The value, or why there is none.
    pub value: Result<T, Unread>,
}

impl<T> Fact<T> {
    /// A fact that was got in another way than from one file.
    pub fn known(path: impl Into<String>, value: T) -> Self {
        Self { path: path.into(), value: Ok(value) }
    }

    /// Nothing of the kind is here.
    pub fn absent(path: impl Into<String>) -> Self {
        Self { path: path.into(), value: Err(Unread::Absent) }
    }

    /// It could not be read, for this reason.
    pub fn failed(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self { path: path.into(), value: Err(Unread::Failed(why.into())) }
    }

    /// The value, if there is one.
    pub fn get(&self) -> Option<&T> {
        self.value.as_ref().ok()
    }

    /// Why it could not be read; `None` where it was, or where there is nothing to read.
    pub fn why_unread(&self) -> Option<String> {
        match &self.value {
            Err(Unread::Failed(why)) => Some(format!("could not read {}: {why}", self.path)),
            _ => None,
        }
    }

    /// Reads a file and makes a value of its text.
    pub fn parse(
        root: &Root,
        path: impl Into<String>,
        make: impl FnOnce(&str) -> Option<T>,
    ) -> Self {
        let path = path.into();
        let value = match read(root, &path) {
            Ok(text) => make(&text).ok_or_else(|| {
                let short: String = text.chars().take(60).collect();
                Unread::Failed(format!("\"{}\" makes no sense there", short.trim()))
            }),
            Err(unread) => Err(unread),
        };
        Self { path, value }
    }

    /// The same fact with another value made of it; `None` from `make` is text that makes no sense.
    pub fn and_then<U>(self, make: impl FnOnce(T) -> Option<U>) -> Fact<U> {
        let value = self.value.and_then(|value| {
            make(value).ok_or_else(|| Unread::Failed("what is there makes no sense".to_owned()))
        });
        Fact { path: self.path, value }
    }
}

impl<T: Copy> Fact<T> {
    /// The value, copied.
    pub fn copied(&self) -> Option<T> {
        self.get().copied()
    }
}

impl Fact<String> {
    /// The text of a file without white space around it.
    pub fn text(root: &Root, path: impl Into<String>) -> Self {
        Self::parse(root, path, |text| Some(text.trim().to_owned()))
    }

    /// What the word in brackets is, in a file that lists the choices: `always [madvise] never`.
    pub fn choice(root: &Root, path: impl Into<String>) -> Self {
        Self::parse(root, path, |text| {
            let (_, rest) = text.split_once('[')?;
            Some(rest.split_once(']')?.0.to_owned())
        })
    }

    /// The text, if there is any.
    pub fn as_deref(&self) -> Option<&str> {
        self.get().map(String::as_str)
    }
}

impl Fact<u64> {
    /// A file with one number.
    pub fn number(root: &Root, path: impl Into<String>) -> Self {
        Self::parse(root, path, |text| text.trim().parse().ok())
    }
}

impl Fact<Vec<usize>> {
    /// A list of CPUs or nodes as the kernel writes it: `0,2-4`. Nothing, and `(null)`, is the
    /// empty list.
    pub fn list(root: &Root, path: impl Into<String>) -> Self {
        Self::parse(root, path, |text| match text.trim() {
            "" | "(null)" => Some(Vec::new()),
            list => super::affinity::parse_list(list).ok(),
        })
    }
}

impl<T: Serialize> Serialize for Fact<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Failure<'a> {
            unread: &'a str,
        }
        match &self.value {
            Ok(value) => value.serialize(serializer),
            Err(Unread::Absent) => serializer.serialize_none(),
            Err(Unread::Failed(why)) => Failure { unread: why }.serialize(serializer),
        }
    }
}

/// A CPU list in the kernel's words: `[0, 2, 3, 4]` is `0,2-4`.
pub fn list_text(numbers: &[usize]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for number in sorted {
        match parts.last_mut() {
            Some((_, to)) if *to + 1 >= number => *to = number,
            _ => parts.push((number, number)),
        }
    }
    let words = parts.iter().map(|(from, to)| match from == to {
        true => from.to_string(),
        false => format!("{from}-{to}"),
    });
    words.collect::<Vec<_>>().join(",")
}

fn read(root: &Root, path: &str) -> Result<String, Unread> {
    std::fs::read_to_string(root.path(path)).map_err(|e| unread(&e))
}

fn unread(e: &io::Error) -> Unread {
    match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Unread::Absent,
        _ => Unread::Failed(e.to_string()),
    }
}

/// The same distinction for a folder or file that was read by [`Root`].
pub(super) fn why(error: &Error) -> Unread {
    match error.kind() {
        crate::error::Kind::NotFound => Unread::Absent,
        _ => Unread::Failed(error.report()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_unread_and_senseless_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("sys/folder")).unwrap();
        std::fs::write(dir.path().join("sys/number"), "12\n").unwrap();
        std::fs::write(dir.path().join("sys/thp"), "always [madvise] never\n").unwrap();
        std::fs::write(dir.path().join("sys/none"), "\n").unwrap();
        let root = Root::at(dir.path());
        assert_eq!(Fact::number(&root, "/sys/number").copied(), Some(12));
        assert_eq!(Fact::number(&root, "/sys/nothing").value, Err(Unread::Absent));
        assert_eq!(Fact::number(&root, "/sys/number/below").value, Err(Unread::Absent));
        let folder = Fact::number(&root, "/sys/folder");
        assert!(folder.why_unread().unwrap().starts_with("could not read /sys/folder: "));
        let senseless = Fact::number(&root, "/sys/thp").why_unread().unwrap();
        assert!(senseless.contains("always [madvise] never"), "{senseless}");
        assert_eq!(Fact::choice(&root, "/sys/thp").as_deref(), Some("madvise"));
        assert_eq!(Fact::list(&root, "/sys/none").get(), Some(&vec![]));
        let json = serde_json::to_string(&[
            Fact::number(&root, "/sys/number"),
            Fact::absent("/x"),
            Fact::failed("/x", "no"),
        ]);
        assert_eq!(json.unwrap(), r#"[12,null,{"unread":"no"}]"#);
    }

    #[test]
    fn lists_are_written_as_the_kernel_does() {
        assert_eq!(list_text(&[3, 0, 2, 4, 9]), "0,2-4,9");
        assert_eq!(list_text(&[]), "");
    }
}
