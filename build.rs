//! Stamps the git revision into the binary, so that every result names the code that made it, and
//! passes on what spdk-sys found.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for file in [".git/HEAD", ".git/logs/HEAD", ".git/index"] {
        if std::path::Path::new(file).exists() {
            println!("cargo:rerun-if-changed={file}");
        }
    }
    println!("cargo:rustc-env=MILLRACE_REVISION={}", revision());
    // Set by spdk-sys where the feature is on: what shared libraries of SPDK need of the linker.
    println!("cargo:rerun-if-env-changed=DEP_SPDK_LINK_ARGS");
    let args = std::env::var("DEP_SPDK_LINK_ARGS").unwrap_or_default();
    for arg in args.split_whitespace() {
        println!("cargo:rustc-link-arg={arg}");
    }
}

/// The abbreviated commit, with `-dirty` for a changed tree, or `unknown` outside a checkout.
fn revision() -> String {
    let git = |args: &[&str]| {
        let out = Command::new("git").args(args).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        None => "unknown".to_owned(),
        Some(commit) => match git(&["status", "--porcelain", "--untracked-files=no"]) {
            Some(changes) if changes.is_empty() => commit,
            _ => format!("{commit}-dirty"),
        },
    }
}
