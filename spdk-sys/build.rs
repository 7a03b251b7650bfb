//! Finds SPDK, binds what is on the allow-list, compiles the shim and says how to link.
//!
//! Looked for in this order: `SPDK_DIR` (an installed prefix, or a build tree), then pkg-config's
//! own search path. `SPDK_SYS_SHARED=1` asks for the shared libraries where both kinds are there.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// Libraries of which nothing is named by a symbol: constructors in them register transports,
/// sockets, memory pools and buses, so the linker has to take them whole.
const WHOLE: [&str; 4] = ["spdk_nvme", "spdk_sock_posix", "rte_mempool_ring", "rte_bus_pci"];

const FUNCTIONS: [&str; 37] = [
    "shim_.*",
    "spdk_nvme_cpl_get_status_string",
    "spdk_nvme_ctrlr_cmd_abort_ext",
    "spdk_nvme_ctrlr_disconnect",
    "spdk_nvme_ctrlr_fail",
    "spdk_nvme_ctrlr_free_io_qpair",
    "spdk_nvme_ctrlr_get_first_active_ns",
    "spdk_nvme_ctrlr_get_next_active_ns",
    "spdk_nvme_ctrlr_get_ns",
    "spdk_nvme_ctrlr_is_active_ns",
    "spdk_nvme_ctrlr_is_fabrics",
    "spdk_nvme_ctrlr_is_failed",
    "spdk_nvme_ctrlr_process_admin_completions",
    "spdk_nvme_ctrlr_reconnect_async",
    "spdk_nvme_ctrlr_reconnect_poll_async",
    "spdk_nvme_detach",
    "spdk_nvme_ns_cmd_flush",
    "spdk_nvme_ns_cmd_read",
    "spdk_nvme_ns_cmd_write",
    "spdk_nvme_ns_get_extended_sector_size",
    "spdk_nvme_ns_get_id",
    "spdk_nvme_ns_get_max_io_xfer_size",
    "spdk_nvme_ns_get_md_size",
    "spdk_nvme_ns_get_num_sectors",
    "spdk_nvme_ns_get_optimal_io_boundary",
    "spdk_nvme_ns_get_sector_size",
    "spdk_nvme_ns_is_active",
    "spdk_nvme_ns_supports_extended_lba",
    "spdk_nvme_qpair_process_completions",
    "spdk_nvme_transport_available_by_name",
    "spdk_nvme_transport_id_parse",
    "spdk_nvme_transport_id_compare",
    "spdk_pci_addr_parse",
    "spdk_pci_device_allow",
    "spdk_zmalloc",
    "spdk_free",
    "spdk_get_ticks.*",
];

const TYPES: [&str; 5] = [
    "spdk_nvme_cpl",
    "spdk_nvme_transport_id",
    "spdk_pci_addr",
    "spdk_nvme_transport_type",
    "spdk_log_level",
];

const VARIABLES: [&str; 4] = [
    "SPDK_MALLOC_DMA",
    "SPDK_NVME_TRANSPORT_(PCIE|VFIOUSER|TCP|RDMA)",
    "SPDK_ENV_NUMA_ID_ANY",
    "SPDK_NVME_IO_FLAGS_FORCE_UNIT_ACCESS",
];

fn main() {
    for name in ["SPDK_DIR", "SPDK_SYS_SHARED", "PKG_CONFIG", "PKG_CONFIG_PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_LIBDIR");
    println!("cargo:rerun-if-changed=c/shim.c");
    println!("cargo:rerun-if-changed=c/shim.h");
    println!("cargo::rustc-check-cfg=cfg(spdk_shared, spdk_rdma, spdk_vfio_user)");
    if let Err(text) = build() {
        // Not a panic: a build script's standard error is shown as it is.
        eprintln!("{text}");
        exit(1);
    }
}

fn build() -> Result<(), String> {
    let finder = Finder::new()?;
    let spdk = Spdk::find(&finder)?;
    println!(
        "cargo:warning=SPDK {} in {} ({})",
        spdk.version,
        spdk.place.display(),
        if spdk.shared { "shared" } else { "static" }
    );
    bind(&spdk)?;
    compile(&spdk);
    link(&spdk);
    Ok(())
}

const HOW_TO_GET: &str = "\
To get SPDK: https://spdk.io/doc/getting_started.html; in short, in its checkout
    sudo scripts/pkgdep.sh && ./configure --prefix=/usr/local && make && sudo make install
Then build again; for another place set SPDK_DIR to the prefix or to the build tree. Without the
feature `spdk` everything else builds: leave out `--features spdk`.";

/// pkg-config with the search path that `SPDK_DIR` asks for.
struct Finder {
    program: String,
    path: Option<String>,
    looked: String,
}

impl Finder {
    fn new() -> Result<Self, String> {
        let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
        let Some(dir) = env::var_os("SPDK_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from)
        else {
            let path = env::var("PKG_CONFIG_PATH").unwrap_or_default();
            let looked = format!("pkg-config's search path (PKG_CONFIG_PATH=\"{path}\")");
            return Ok(Self { program, path: None, looked });
        };
        let folders = [
            "lib/pkgconfig",
            "lib64/pkgconfig",
            "lib/x86_64-linux-gnu/pkgconfig",
            "build/lib/pkgconfig",
        ]
        .map(|sub| dir.join(sub));
        let names = folders.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", ");
        if !folders.iter().any(|folder| folder.join("spdk_nvme.pc").exists()) {
            return Err(format!(
                "SPDK_DIR={} is neither an installed SPDK nor a build tree: no spdk_nvme.pc in \
                 {names}.\n{HOW_TO_GET}",
                dir.display()
            ));
        }
        // A build tree keeps DPDK's files apart.
        let dpdk = [dir.join("dpdk/build/lib/pkgconfig"), dir.join("dpdk/build/lib64/pkgconfig")];
        let mut path: Vec<String> = folders
            .iter()
            .chain(&dpdk)
            .filter(|folder| folder.is_dir())
            .map(|folder| folder.display().to_string())
            .collect();
        path.extend(env::var("PKG_CONFIG_PATH").ok());
        Ok(Self { program, path: Some(path.join(":")), looked: format!("SPDK_DIR ({names})") })
    }

    fn run(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.args(args);
        if let Some(path) = &self.path {
            command.env("PKG_CONFIG_PATH", path);
        }
        let out = command.output().map_err(|e| {
            format!("cannot run {} to find SPDK: {e}. Install pkg-config.", self.program)
        })?;
        if out.status.success() {
            return Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned());
        }
        Err(format!(
            "No SPDK found: `{} {}` failed.\nLooked for the modules spdk_nvme, spdk_env_dpdk and \
             spdk_syslibs in {}. It said:\n{}\n{HOW_TO_GET}",
            self.program,
            args.join(" "),
            self.looked,
            String::from_utf8_lossy(&out.stderr).trim()
        ))
    }
}

/// What was found.
struct Spdk {
    place: PathBuf,
    version: String,
    includes: Vec<PathBuf>,
    folders: Vec<PathBuf>,
    /// SPDK's and DPDK's own libraries, in link order.
    own: Vec<String>,
    /// What those need from the system: names, or files by their whole path.
    system: Vec<String>,
    shared: bool,
    rdma: bool,
    vfio_user: bool,
}

impl Spdk {
    fn find(finder: &Finder) -> Result<Self, String> {
        let modules = ["spdk_nvme", "spdk_env_dpdk"];
        let cflags = finder.run(&["--cflags", modules[0], modules[1]])?;
        let libs = finder.run(&["--libs", modules[0], modules[1]])?;
        // Releases differ in whether these are public or private; --static gives both.
        let syslibs = finder.run(&["--static", "--libs", "spdk_syslibs"])?;
        // The modules name no libdir; their files lie in its pkgconfig folder.
        let place = PathBuf::from(finder.run(&["--variable=pcfiledir", "spdk_nvme"])?);
        let place = place.parent().map_or_else(|| place.clone(), Path::to_owned);

        let mut includes: Vec<PathBuf> = cflags
            .split_whitespace()
            .filter_map(|f| f.strip_prefix("-I"))
            .map(Into::into)
            .collect();
        // pkg-config leaves out what it takes for the compiler's own path; clang may not.
        includes.extend(place.parent().map(|prefix| prefix.join("include")));
        let header = |name: &str| {
            let found = includes.iter().map(|dir| dir.join("spdk").join(name)).find(|f| f.exists());
            let found = found.ok_or_else(|| {
                format!("SPDK's header spdk/{name} is in none of {includes:?}.\n{HOW_TO_GET}")
            })?;
            std::fs::read_to_string(&found).map_err(|e| format!("{}: {e}", found.display()))
        };
        let version = version(&header("version.h")?)?;
        let config = header("config.h")?;
        let has = |name: &str| config.lines().any(|l| l.trim() == format!("#define {name} 1"));

        let mut folders = vec![place.clone()];
        let (mut own, mut system) = (Vec::new(), Vec::new());
        for flag in libs.split_whitespace().chain(syslibs.split_whitespace()) {
            if let Some(folder) = flag.strip_prefix("-L") {
                folders.push(folder.into());
            } else if let Some(name) = flag.strip_prefix("-l") {
                let name =
                    name.strip_prefix(":lib").and_then(|n| n.strip_suffix(".a")).unwrap_or(name);
                let list = if is_own(name) { &mut own } else { &mut system };
                if !list.iter().any(|known| known == name) {
                    list.push(name.to_owned());
                }
            } else if flag.starts_with('/') {
                system.push(flag.to_owned());
            }
        }
        folders.dedup();
        let there = |kind: &str| {
            folders.iter().any(|folder| folder.join(format!("libspdk_nvme.{kind}")).exists())
        };
        let wish = env::var("SPDK_SYS_SHARED").is_ok_and(|v| v == "1");
        let shared = match (there("a"), there("so")) {
            (_, true) if wish => true,
            (true, _) if !wish => false,
            (false, true) => true,
            _ => {
                return Err(format!(
                    "no {} in {folders:?}, which spdk_nvme.pc names.\n{HOW_TO_GET}",
                    if wish { "libspdk_nvme.so (SPDK_SYS_SHARED=1)" } else { "libspdk_nvme.a" }
                ));
            }
        };
        let rdma = has("SPDK_CONFIG_RDMA");
        let vfio_user = has("SPDK_CONFIG_VFIO_USER");
        Ok(Self { place, version, includes, folders, own, system, shared, rdma, vfio_user })
    }
}

fn is_own(name: &str) -> bool {
    name.starts_with("spdk_") || name.starts_with("rte_")
}

/// `26.05` from the macros of spdk/version.h. The modules' own version is that of their ABI.
fn version(header: &str) -> Result<String, String> {
    let number = |name: &str| {
        header
            .lines()
            .filter_map(|line| line.strip_prefix("#define")?.trim().strip_prefix(name))
            .find_map(|rest| rest.trim().parse::<u32>().ok())
            .ok_or_else(|| format!("spdk/version.h has no {name}"))
    };
    let (major, minor) = (number("SPDK_VERSION_MAJOR")?, number("SPDK_VERSION_MINOR")?);
    if major < 23 {
        return Err(format!("SPDK {major}.{minor:02} is too old: 23.09 or later is needed."));
    }
    let patch = number("SPDK_VERSION_PATCH").unwrap_or(0);
    Ok(if patch == 0 {
        format!("{major}.{minor:02}")
    } else {
        format!("{major}.{minor:02}.{patch}")
    })
}

fn out_dir() -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
}

fn bind(spdk: &Spdk) -> Result<(), String> {
    let mut builder = bindgen::Builder::default()
        .header("c/shim.h")
        .clang_args(spdk.includes.iter().map(|dir| format!("-I{}", dir.display())))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .wrap_unsafe_ops(true)
        .generate_comments(false)
        .prepend_enum_name(false)
        .layout_tests(true)
        .opaque_type("spdk_nvme_ctrlr")
        .opaque_type("spdk_nvme_ns")
        .opaque_type("spdk_nvme_qpair");
    for name in FUNCTIONS {
        builder = builder.allowlist_function(name);
    }
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in VARIABLES {
        builder = builder.allowlist_var(name);
    }
    let bindings = builder.generate().map_err(|e| {
        format!(
            "bindgen cannot read SPDK's headers in {:?}: {e}. It needs libclang.",
            spdk.includes
        )
    })?;
    let file = out_dir().join("bindings.rs");
    bindings.write_to_file(&file).map_err(|e| format!("{}: {e}", file.display()))
}

fn compile(spdk: &Spdk) {
    let mut build = cc::Build::new();
    build.file("c/shim.c").includes(&spdk.includes).warnings(true).extra_warnings(true);
    // SPDK's own headers have sign comparisons and unused parameters.
    build.flag_if_supported("-Wno-unused-parameter").flag_if_supported("-Wno-sign-compare");
    build.compile("millrace_spdk_shim");
}

fn link(spdk: &Spdk) {
    for folder in &spdk.folders {
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
    for name in &spdk.own {
        if spdk.shared {
            println!("cargo:rustc-link-lib=dylib={name}");
        } else {
            let whole = if WHOLE.contains(&name.as_str()) { ",+whole-archive" } else { "" };
            // Not bundled: they stay where they are until the program is linked.
            println!("cargo:rustc-link-lib=static:-bundle{whole}={name}");
        }
    }
    for name in &spdk.system {
        if let Some((folder, file)) = Path::new(name).parent().zip(Path::new(name).file_name())
            && name.starts_with('/')
        {
            let file = file.to_string_lossy();
            let stem = file.strip_prefix("lib").and_then(|f| f.strip_suffix(".a"));
            let Some(stem) = stem else { continue };
            println!("cargo:rustc-link-search=native={}", folder.display());
            println!("cargo:rustc-link-lib=static:-bundle={stem}");
        } else if name != "pthread" {
            // libvfio-user is the target's side, which we are not, and often not installed.
            let there = |dir: &PathBuf| {
                ["a", "so"].iter().any(|kind| dir.join(format!("lib{name}.{kind}")).exists())
            };
            if name == "vfio-user" && !spdk.folders.iter().any(there) {
                continue;
            }
            println!("cargo:rustc-link-lib={name}");
        }
    }
    // Compilers of some distributions pass --as-needed, which drops the shared libraries that
    // only have constructors: named again without it. A dependency cannot give linker arguments
    // to the program, so its build script takes these from DEP_SPDK_LINK_ARGS.
    let mut args = Vec::new();
    if spdk.shared {
        args.push(format!("-Wl,-rpath,{}", spdk.place.display()));
        args.push("-Wl,--no-as-needed".to_owned());
        let forced = WHOLE.iter().filter(|name| spdk.own.iter().any(|own| own == *name));
        args.extend(forced.map(|name| format!("-l{name}")));
        args.push("-Wl,--as-needed".to_owned());
        println!("cargo:rustc-cfg=spdk_shared");
    }
    for arg in &args {
        println!("cargo:rustc-link-arg={arg}");
    }
    println!("cargo:link_args={}", args.join(" "));
    println!("cargo:version={}", spdk.version);
    println!("cargo:shared={}", spdk.shared);
    println!("cargo:rdma={}", spdk.rdma);
    println!("cargo:vfio_user={}", spdk.vfio_user);
    println!("cargo:rustc-env=SPDK_SYS_VERSION={}", spdk.version);
    if spdk.rdma {
        println!("cargo:rustc-cfg=spdk_rdma");
    }
    if spdk.vfio_user {
        println!("cargo:rustc-cfg=spdk_vfio_user");
    }
}
