//! A test that cannot run here says so where it is seen.

use std::io::Write;

/// Says that a test cannot run here and why: on standard error, past the capture of tests' output,
/// and in the file that `MILLRACE_SKIPS` names, a line for each test, from which `scripts/test`
/// makes its summary.
pub fn skip(test: &str, why: &str) {
    // A reason of many lines would count as many tests.
    let text = format!("{test}: {}\n", why.trim_end().replace('\n', "; "));
    let mut stderr = std::io::stderr();
    stderr.write_all(format!("skipped: {text}").as_bytes()).expect("standard error is there");
    if let Some(path) = std::env::var_os("MILLRACE_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.expect("the list of skips").write_all(text.as_bytes()).expect("it can be written");
    }
}

/// The name of the running test, which the test harness gives to its thread.
#[allow(dead_code, reason = "each test program uses a part")]
pub fn this_test() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}
