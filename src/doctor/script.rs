//! The mends as a shell script. It is printed for a person to read and run; nothing runs it here.

use std::fmt::Write;

use crate::host::finding::{Finding, Mend, Outcome};

/// The script. What no command mends, is in it as a comment.
pub fn script(findings: &[Finding]) -> String {
    let mut text = String::from(
        "#!/bin/sh\n# What `millrace doctor` would change. Read it before it is run, as root.\n\
         # Settings made by commands last until the next boot.\nset -eu\n",
    );
    for finding in findings.iter().filter(|finding| finding.outcome >= Outcome::Warn) {
        let _ = write!(text, "\n# {}: {}\n", finding.id, comment(&finding.what));
        for mend in &finding.mends {
            let _ = match mend {
                Mend::Run(command) => writeln!(text, "{command}"),
                Mend::Do(what) => writeln!(text, "#   by hand: {}", comment(what)),
            };
        }
    }
    text
}

/// A text that stays within its comment, whatever is in it: names come from devices.
fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_cannot_leave_its_comment() {
        assert_eq!(comment("a\nrm -rf /\r"), "a rm -rf / ");
    }
}
