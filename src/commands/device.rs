//! `millrace device list | bind | unbind | restore`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::device::{
    BindRequest, DEFAULT_JOURNAL, Journal, JournalFile, RestoreRequest, System, bind, json, plan,
    preview, restore, survey, table,
};
use crate::error::Result;
use crate::host::Root;

/// Arguments of `millrace device`.
#[derive(Debug, Args)]
pub struct DeviceArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows every NVMe drive: who it is, who has it, what it is used for and how it is connected
    List(ListArgs),
    /// Moves drives from the kernel's driver to vfio-pci, for --backend spdk
    ///
    /// Refuses a drive that is in use; asks for the serial of one that holds data. The journal
    /// remembers where it came from.
    Bind(BindArgs),
    /// Gives drives back to the driver they came from: those named, or --all
    Unbind(UnbindArgs),
    /// Gives drives back to the driver they came from: those named, or all in the journal; also
    /// after a crash or a reboot
    Restore(RestoreArgs),
}

#[derive(Debug, Args)]
struct JournalArg {
    /// The journal of moved drives
    #[arg(long, value_name = "FILE", default_value = DEFAULT_JOURNAL)]
    journal: PathBuf,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    journal: JournalArg,
}

#[derive(Debug, Args)]
struct BindArgs {
    /// PCI address, /dev/nvmeXnY or serial
    #[arg(required = true, value_name = "DRIVE")]
    drives: Vec<String>,
    /// The driver to move to
    #[arg(long, value_enum, default_value_t)]
    driver: Driver,
    /// Show what would be done, and everything that speaks against it
    #[arg(long)]
    dry_run: bool,
    /// Serial of a drive that holds data, to say that it is the one meant; repeatable
    #[arg(long = "yes-i-mean", value_name = "SERIAL")]
    meant: Vec<String>,
    /// Have N free hugepages of 2 MiB on the drive's NUMA node (a pool grows, it never shrinks)
    #[arg(long, value_name = "N")]
    hugepages: Option<u64>,
    #[command(flatten)]
    journal: JournalArg,
}

/// Drivers for userspace. uio_pci_generic is not among them: see [`crate::device::VFIO`].
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Driver {
    #[default]
    VfioPci,
}

#[derive(Debug, Args)]
struct UnbindArgs {
    /// PCI address or serial
    #[arg(required_unless_present = "all", value_name = "DRIVE")]
    drives: Vec<String>,
    #[command(flatten)]
    how: BackArgs,
}

#[derive(Debug, Args)]
struct RestoreArgs {
    /// PCI address or serial; none: every drive in the journal
    #[arg(value_name = "DRIVE")]
    drives: Vec<String>,
    #[command(flatten)]
    how: BackArgs,
}

/// What `unbind` and `restore` have in common.
#[derive(Debug, Args)]
struct BackArgs {
    /// Every drive in the journal
    #[arg(long, conflicts_with = "drives")]
    all: bool,
    /// Show what would be done
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    journal: JournalArg,
}

/// Runs the command; what it did goes to standard output, line by line.
pub fn run(args: &DeviceArgs) -> Result<()> {
    match &args.command {
        Command::List(args) => list(args),
        Command::Bind(args) => bind_drives(args),
        Command::Unbind(args) => restore_drives(&args.drives, &args.how),
        Command::Restore(args) => restore_drives(&args.drives, &args.how),
    }
}

fn list(args: &ListArgs) -> Result<()> {
    let journal = Journal::read(&args.journal.journal)?;
    let drives = survey(&Root::system(), &journal)?;
    match args.json {
        true => println!("{}", json(&drives)?),
        false => print!("{}", table(&drives)),
    }
    Ok(())
}

fn bind_drives(args: &BindArgs) -> Result<()> {
    let Driver::VfioPci = args.driver;
    let request = BindRequest {
        drives: args.drives.clone(),
        meant: args.meant.clone(),
        hugepages: args.hugepages,
    };
    let kernel = System::new();
    if args.dry_run {
        // Takes no lock and makes no folder.
        let journal = Journal::read(&args.journal.journal)?;
        print!("{}", plan(&kernel, &journal, &request)?.describe());
        return Ok(());
    }
    let mut journal = JournalFile::open(&args.journal.journal)?;
    bind(&kernel, &mut journal, &request, &mut |text| println!("{text}"))
}

fn restore_drives(drives: &[String], how: &BackArgs) -> Result<()> {
    // `--all` is what no names stand for; clap has seen to it that one of both was given to unbind.
    let request = RestoreRequest { drives: drives.to_vec() };
    let kernel = System::new();
    let journal = &how.journal.journal;
    let mut say = |text: &str| println!("{text}");
    if how.dry_run {
        return preview(&kernel, &Journal::read(journal)?, &request, &mut say);
    }
    restore(&kernel, &mut JournalFile::open(journal)?, &request, &mut say)
}
