//! Measures this project beside the tools that its users know, in interleaved pairs on the same
//! cores, and prints `ratio NAME MEDIAN (min-max) n=PAIRS` for each job. Above 1: we are faster.
//!
//! `scripts/bench` runs it. What is not installed is left out, with a line that says so.

mod jobs;
mod peers;
mod setup;

use std::process::ExitCode;

use jobs::{Job, jobs};

struct Options {
    pairs: usize,
    seconds: f64,
    names: Vec<String>,
}

const HELP: &str = "\
Usage: scripts/bench [--pairs N] [--seconds S] [--list] [NAME...]

Measures millrace beside fio, iperf3 and SPDK's tools, in interleaved pairs.
  --pairs N     pairs of runs of each job [7]
  --seconds S   length of each run [3]
  --list        names of the jobs
With names, only jobs whose name contains one of them.";

fn parse() -> Result<Option<Options>, String> {
    let mut options = Options { pairs: 7, seconds: 3.0, names: Vec::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|text| text.parse::<f64>().ok());
        match arg.as_str() {
            // What `cargo bench` passes to every program.
            "--bench" => {}
            "--help" => {
                println!("{HELP}");
                return Ok(None);
            }
            "--list" => {
                jobs().iter().for_each(|job| println!("{:<28} {}", job.name, job.what));
                return Ok(None);
            }
            "--pairs" => options.pairs = number().ok_or("--pairs needs a number")? as usize,
            "--seconds" => options.seconds = number().ok_or("--seconds needs a number")?,
            name if !name.starts_with('-') => options.names.push(name.to_owned()),
            other => return Err(format!("unknown option {other}\n{HELP}")),
        }
    }
    if options.pairs == 0 || options.seconds <= 0.0 {
        return Err("at least one pair, of more than 0 seconds".into());
    }
    Ok(Some(options))
}

fn main() -> ExitCode {
    let options = match parse() {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    let wanted = |job: &Job| {
        options.names.is_empty() || options.names.iter().any(|name| job.name.contains(&**name))
    };
    let mut failed = false;
    for job in jobs().into_iter().filter(wanted) {
        if let Some(missing) = job.missing() {
            println!("left out {}: {missing}", job.name);
            continue;
        }
        match measure(&job, &options) {
            Ok(()) => {}
            Err(text) => {
                failed = true;
                println!("failed {}: {text}", job.name);
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn measure(job: &Job, options: &Options) -> Result<(), String> {
    eprintln!("# {}: {}", job.name, job.what);
    let mut stage = (job.setup)()?;
    let (mut ratios, mut ours, mut theirs, mut cpu) = (vec![], vec![], vec![], vec![]);
    for pair in 0..options.pairs {
        // A B B A: a drift of the machine favours neither side.
        let mut one = |first: bool| {
            if first {
                (job.ours)(&mut stage, options.seconds)
            } else {
                (job.theirs)(&mut stage, options.seconds)
            }
        };
        let we_start = pair % 2 == 0;
        let (a, b) = (one(we_start)?, one(!we_start)?);
        let (we, they) = if we_start { (a, b) } else { (b, a) };
        eprintln!("#   ours {:.4e}  {} {:.4e}  ({})", we.rate, job.peer, they.rate, job.unit);
        ratios.push(if job.less_is_more { they.rate / we.rate } else { we.rate / they.rate });
        ours.push(we.rate);
        theirs.push(they.rate);
        if let (Some(we), Some(they)) = (we.cpu_per_op, they.cpu_per_op) {
            cpu.push(they / we);
        }
    }
    println!(
        "# {}: ours {:.4e}, {} {:.4e} {} (medians)",
        job.name,
        median(&mut ours),
        job.peer,
        median(&mut theirs),
        job.unit
    );
    print_ratio(job.name, &mut ratios);
    if !cpu.is_empty() {
        print_ratio(&format!("{}-cpu-per-op", job.name), &mut cpu);
    }
    Ok(())
}

fn print_ratio(name: &str, ratios: &mut [f64]) {
    let middle = median(ratios);
    let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
    println!("ratio {name} {middle:.3} ({least:.3}-{most:.3}) n={}", ratios.len());
}

/// Sorts, and gives the middle.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        (values[middle - 1] + values[middle]) / 2.0
    } else {
        values[middle]
    }
}
