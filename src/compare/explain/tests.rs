//! Planted walls: each case is the evidence that such a machine gives. The wall is named, no other
//! is, and those that it could be taken for are denied.

use super::*;
use crate::compare::stats::{Ratio, Verdict};

/// A healthy local run at depth 16 of a sweep: nothing is full, nothing is missing.
fn healthy() -> Evidence {
    let mut evidence = Evidence {
        depth: 16.0,
        local: true,
        check: "crc".into(),
        wait: "spin".into(),
        sweep: vec![(1.0, 10e3), (4.0, 40e3), (16.0, 100e3), (64.0, 101e3)],
        pcie: Some(7e9),
        link: Some("16GT/s x4 of 16GT/s x4".into()),
        together: true,
        ..Evidence::default()
    };
    for (name, value) in [
        ("iops", 100e3),
        ("bytes_per_sec", 4096.0 * 100e3),
        ("latency_mean_ns", 160e3),
        ("latency_p50_ns", 150e3),
        ("in_flight", 16.0),
        ("drive_ns", 150e3),
        ("check_ns", 5e3),
        ("queued_ns", 0.0),
        ("fabric_client_ns", 0.0),
        ("busy_share", 0.4),
        ("reader_wait_share", 0.001),
        ("others_share", 0.002),
        ("steal_share", 0.0),
        ("slow_idle_share", 0.0),
        ("cpu_user_ns_per_read", 1500.0),
        ("cpu_system_ns_per_read", 2500.0),
    ] {
        evidence.figures.insert(name.into(), value);
    }
    evidence
}

fn with(figures: &[(&str, f64)]) -> Evidence {
    let mut evidence = healthy();
    evidence.figures.extend(figures.iter().map(|(name, value)| ((*name).into(), *value)));
    evidence
}

fn wall(evidence: &Evidence) -> Option<Wall> {
    explain(evidence).wall.map(|named| named.wall)
}

fn denies(evidence: &Evidence, walls: &[Wall]) {
    let finding = explain(evidence);
    for wall in walls {
        assert!(finding.not.iter().any(|named| named.wall == *wall), "{wall:?}: {finding:?}");
    }
}

/// Behind a fabric: what of a server is not known is missing.
fn remote(figures: &[(&str, f64)]) -> Evidence {
    let mut evidence = with(figures);
    evidence.local = false;
    evidence.figures.remove("busy_share");
    evidence
}

#[test]
fn a_slow_drive() {
    // A throttled drive: more depth only makes latency longer.
    let slow = with(&[("iops", 2000.0), ("latency_mean_ns", 8e6), ("drive_ns", 7.9e6)]);
    let slow = Evidence { sweep: vec![(4.0, 2000.0), (16.0, 2000.0), (64.0, 2001.0)], ..slow };
    assert_eq!(wall(&slow), Some(Wall::Drive));
    denies(&slow, &[Wall::OtherLoad, Wall::OfferedLoad, Wall::KernelCpu, Wall::Pcie]);
    assert!(explain(&slow).wall.unwrap().text.contains("16.0 reads in flight (Little's law)"));
}

#[test]
fn a_slow_drive_at_the_end_of_the_sweep() {
    let evidence = Evidence { depth: 64.0, ..healthy() };
    assert_eq!(wall(&evidence), Some(Wall::Drive));
}

#[test]
fn a_slow_drive_that_an_open_loop_outruns() {
    let behind = with(&[("iops", 2000.0), ("unstarted", 5000.0)]);
    let behind = Evidence { rate: Some(9000.0), sweep: Vec::new(), ..behind };
    assert_eq!(wall(&behind), Some(Wall::Drive));
    denies(&behind, &[Wall::OfferedLoad]);
}

#[test]
fn an_open_loop_below_capacity() {
    let below = with(&[("iops", 4990.0), ("unstarted", 0.0), ("in_flight", 0.7)]);
    let below = Evidence { rate: Some(5000.0), sweep: Vec::new(), ..below };
    assert_eq!(wall(&below), Some(Wall::OfferedLoad));
    assert!(explain(&below).wall.unwrap().text.contains("4990 of the 5000 reads/s"));
}

#[test]
fn a_depth_that_is_too_small() {
    let evidence = Evidence { depth: 4.0, ..with(&[("iops", 40e3), ("in_flight", 4.0)]) };
    assert_eq!(wall(&evidence), Some(Wall::OfferedLoad));
    denies(&evidence, &[Wall::OtherLoad, Wall::KernelCpu]);
}

#[test]
fn a_hog_on_the_workers_core() {
    let hog = [("others_share", 0.5), ("reader_wait_share", 0.49), ("busy_share", 0.5)];
    let hog = with(&hog);
    assert_eq!(wall(&hog), Some(Wall::OtherLoad));
    assert!(explain(&hog).wall.unwrap().text.contains("others had 50 %"));
    // With the hog the CPU can look full; it is not the path that fills it.
    let full = [("others_share", 0.5), ("busy_share", 0.9), ("reader_wait_share", 0.5)];
    assert_eq!(wall(&with(&full)), Some(Wall::OtherLoad));
}

#[test]
fn a_hypervisor_that_takes_the_cpu() {
    assert_eq!(wall(&with(&[("steal_share", 0.3)])), Some(Wall::OtherLoad));
}

#[test]
fn deep_idle_states() {
    // background: 286 K IOPS, CPU use 40 %, cores in C6 between interrupts.
    let figures = [("slow_idle_share", 0.55), ("busy_share", 0.4), ("latency_p50_ns", 228e3)];
    let sleepy = Evidence { wait: "block".into(), ..with(&figures) };
    assert_eq!(wall(&sleepy), Some(Wall::SleepingCores));
    assert!(explain(&sleepy).wall.unwrap().text.contains("55 %"));
    // Idle cores without slow states are not asleep.
    denies(&healthy(), &[Wall::SleepingCores]);
}

#[test]
fn a_link_of_four_lanes() {
    let narrow = with(&[("bytes_per_sec", 3.3e9), ("iops", 3100.0)]);
    let narrow =
        Evidence { pcie: Some(3.47e9), link: Some("8GT/s x4 of 16GT/s x4".into()), ..narrow };
    assert_eq!(wall(&narrow), Some(Wall::Pcie));
    assert!(explain(&narrow).wall.unwrap().text.contains("8GT/s x4 of 16GT/s x4"));
    denies(&narrow, &[Wall::KernelCpu]);
}

#[test]
fn a_link_that_carries_more_than_it_says_is_no_wall() {
    // QEMU's root ports say 2.5 GT/s x1, whatever its drives do.
    let emulated = with(&[("bytes_per_sec", 570e6)]);
    let link = Some("2.5GT/s x1".into());
    let emulated = Evidence { pcie: Some(220e6), link, ..emulated };
    denies(&emulated, &[Wall::Pcie]);
    let soft = remote(&[("bytes_per_sec", 570e6)]);
    denies(&Evidence { nic: Some(220e6), ..soft }, &[Wall::Nic]);
}

#[test]
fn a_nic_at_its_rate() {
    let full = remote(&[("bytes_per_sec", 46e9), ("client_idle_share", 0.3)]);
    let full = Evidence { nic: Some(50e9), pcie: None, ..full };
    assert_eq!(wall(&full), Some(Wall::Nic));
    assert!(explain(&full).wall.unwrap().text.contains("92 %"));
}

#[test]
fn a_rate_limit_between_the_sides() {
    // tc: both sides wait, and the time is between them.
    let limited = remote(&[
        ("fabric_client_ns", 9e6),
        ("latency_mean_ns", 10e6),
        ("drive_ns", 0.5e6),
        ("client_idle_share", 0.9),
    ]);
    let limited =
        Evidence { sweep: vec![(8.0, 1600.0), (16.0, 1600.0), (32.0, 1601.0)], ..limited };
    assert_eq!(wall(&limited), Some(Wall::Nic));
    denies(&limited, &[Wall::OfferedLoad, Wall::Drive]);
}

#[test]
fn a_client_that_is_full() {
    let client = remote(&[
        ("client_idle_share", 0.02),
        ("fabric_client_ns", 100e3),
        ("drive_ns", 40e3),
        ("cpu_user_ns_per_read", 5e3),
    ]);
    assert_eq!(wall(&client), Some(Wall::ClientCpu));
    denies(&client, &[Wall::Nic, Wall::Drive]);
}

#[test]
fn memory_on_the_wrong_node() {
    let figures = [("busy_share", 0.98), ("cpu_user_ns_per_read", 60e3)];
    let apart = "memory on node 1, workers on [0]";
    let wrong = Evidence { apart: Some(apart.into()), together: false, ..with(&figures) };
    assert_eq!(wall(&wrong), Some(Wall::RemoteMemory));
    assert!(explain(&wrong).wall.unwrap().text.contains(apart));
    // With time to spare it is a fact, and not the wall.
    let spare = Evidence { apart: Some(apart.into()), ..with(&[("busy_share", 0.4)]) };
    denies(&spare, &[Wall::RemoteMemory]);
}

#[test]
fn pages_pinned_for_every_read() {
    // background: READ with user pointers, CPU at 100 %, 81.6 % of it in io_submit_sqes.
    let pinning = with(&[
        ("busy_share", 1.0),
        ("cpu_system_ns_per_read", 36e3),
        ("cpu_user_ns_per_read", 8e3),
    ]);
    assert_eq!(wall(&pinning), Some(Wall::KernelCpu));
    assert!(explain(&pinning).wall.unwrap().text.contains("(82 %)"));
    denies(&pinning, &[Wall::CheckCpu, Wall::Drive, Wall::OtherLoad]);
}

#[test]
fn checks_that_fill_the_cpu() {
    let checking = with(&[
        ("busy_share", 0.99),
        ("cpu_system_ns_per_read", 9e3),
        ("cpu_user_ns_per_read", 40e3),
    ]);
    assert_eq!(wall(&checking), Some(Wall::CheckCpu));
    denies(&checking, &[Wall::KernelCpu, Wall::Drive]);
    // The same time without a check is not a check's.
    let unchecked = Evidence { check: "none".into(), ..checking };
    assert_ne!(wall(&unchecked), Some(Wall::CheckCpu));
}

#[test]
fn too_little_evidence_says_what_to_run() {
    let nothing = explain(&Evidence::default());
    assert_eq!(nothing.wall, None);
    assert!(nothing.next.iter().any(|text| text.contains("--counters on")), "{nothing:?}");
    let alone = Evidence { sweep: vec![(16.0, 100e3)], ..healthy() };
    let finding = explain(&alone);
    assert_eq!(finding.wall, None, "{finding:?}");
    assert!(finding.next.iter().any(|text| text.contains("--depth 32")), "{finding:?}");
}

#[test]
fn every_sentence_has_a_figure() {
    for evidence in [healthy(), remote(&[("client_idle_share", 0.5)])] {
        let finding = explain(&evidence);
        let wall = finding.wall.expect("one is named");
        assert!(wall.text.chars().any(|c| c.is_ascii_digit()), "{}", wall.text);
    }
}

mod chain {
    //! The experiments of the table in docs/COMPARE.md, as they came out there.

    use super::*;
    use crate::compare::analysis::{Comparison, Point};
    use crate::compare::builtin::article;
    use crate::compare::matrix::Matrix;
    use crate::compare::report::testing::matrix;

    fn exactly(ratio: f64, verdict: Verdict) -> Ratio {
        Ratio { ratio, low: ratio * 0.98, high: ratio * 1.02, rounds: 8, verdict }
    }

    fn same() -> Ratio {
        exactly(1.0, Verdict::NoDifferenceShown)
    }

    fn comparison(set: &Matrix, name: &str, ratios: &[(&str, Ratio)]) -> Comparison {
        let number = |name: &str| set.variants.iter().position(|v| v.name == name).unwrap();
        let variant = &set.variants[number(name)];
        Comparison {
            load: 0,
            from: number(variant.from.as_deref().unwrap()),
            variant: number(name),
            changes: set.changes(variant),
            ratios: ratios.iter().map(|(name, ratio)| ((*name).into(), *ratio)).collect(),
        }
    }

    fn said(set: &Matrix, comparisons: &[Comparison]) -> Vec<(Wall, String)> {
        let points: Vec<Point> =
            (0..set.variants.len()).map(|variant| Point { variant, ..Point::default() }).collect();
        let all = super::super::of(set, &points, comparisons, &[]);
        all.chain.into_iter().map(|c| (c.shows.wall, c.shows.text)).collect()
    }

    fn set() -> Matrix {
        article(matrix()).unwrap()
    }

    #[test]
    fn misses_of_the_tlb_are_the_wall_and_the_arithmetic_is_not() {
        let set = set();
        let (faster, fewer) = (exactly(1.9, Verdict::Above), exactly(0.05, Verdict::Below));
        let comparisons = [
            comparison(&set, "check none", &[("iops", faster)]),
            comparison(&set, "check touch", &[("iops", same())]),
            comparison(
                &set,
                "1 GiB pages",
                &[
                    ("iops", faster),
                    ("dtlb_load_misses_per_read", fewer),
                    ("l1d_load_misses_per_read", same()),
                ],
            ),
        ];
        let said = said(&set, &comparisons);
        assert!(said[0].1.contains("not the arithmetic of the CRC, but the access"), "{said:?}");
        assert_eq!(said[1].0, Wall::AddressTranslation);
        assert!(said[1].1.contains("x1.90") && said[1].1.contains("L1D misses unchanged"));
    }

    #[test]
    fn arithmetic_is_named_where_touching_is_free() {
        let set = set();
        let faster = exactly(1.5, Verdict::Above);
        let comparisons = [
            comparison(&set, "check none", &[("iops", faster)]),
            comparison(&set, "check touch", &[("iops", exactly(1.48, Verdict::Above))]),
        ];
        let said = said(&set, &comparisons);
        assert!(said[0].1.ends_with("the arithmetic of the CRC"), "{said:?}");
    }

    #[test]
    fn pages_without_counters_are_not_overclaimed() {
        let set = set();
        let faster = exactly(1.5, Verdict::Above);
        let said = said(&set, &[comparison(&set, "2 MiB pages", &[("iops", faster)])]);
        assert!(said[0].1.contains("does not show"), "{said:?}");
    }

    #[test]
    fn splitting_and_files_are_not_the_wall() {
        let set = set();
        let larger = exactly(1.5, Verdict::Above);
        let comparisons = [
            comparison(&set, "READ", &[("iops", same()), ("drive_request_bytes", larger)]),
            comparison(&set, "no registered files", &[("iops", same())]),
        ];
        let said_of = said(&set, &comparisons);
        assert!(said_of[0].1.contains("splitting is not the wall"), "{said_of:?}");

        let mut points: Vec<Point> =
            (0..set.variants.len()).map(|variant| Point { variant, ..Point::default() }).collect();
        let number = comparisons[1].variant;
        points[0].traced.insert("fget_per_read".into(), 0.0);
        points[number].traced.insert("fget_per_read".into(), 1.0);
        let effects = super::super::of(&set, &points, &comparisons, &[]).switches;
        let text = &effects[1].text;
        assert!(text.contains("fget per read went from 0.00 to 1.00"), "{text}");
        assert!(text.ends_with("what this switch changes is not the wall"), "{text}");
        assert!(!effects[1].moved);
    }

    #[test]
    fn a_wide_interval_rules_nothing_out() {
        let set = set();
        let wide = Ratio { low: 0.6, high: 1.7, ..same() };
        let larger = exactly(1.5, Verdict::Above);
        let comparisons = [
            comparison(&set, "check none", &[("iops", wide)]),
            comparison(&set, "READ", &[("iops", wide), ("drive_request_bytes", larger)]),
        ];
        assert_eq!(said(&set, &comparisons), []);
        let points: Vec<Point> =
            (0..set.variants.len()).map(|variant| Point { variant, ..Point::default() }).collect();
        for effect in super::super::of(&set, &points, &comparisons, &[]).switches {
            assert!(effect.text.contains("more rounds would say more"), "{}", effect.text);
            assert!(!effect.text.contains("not the wall"), "{}", effect.text);
        }
    }
}
