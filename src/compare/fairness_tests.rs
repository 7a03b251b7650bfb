//! Each fact that qualifies or spoils a comparison.

use super::*;
use crate::compare::facts::{DriveFacts, RunFacts};
use crate::compare::matrix::loads;
use crate::compare::report::testing::{header, run};

fn verdict_of(change: impl Fn(&mut Header, &mut Vec<Run>)) -> Fairness {
    let mut header = header();
    let mut runs: Vec<Run> =
        (0..8).flat_map(|round| [run(round, 0, 1000.0), run(round, 1, 1100.0)]).collect();
    change(&mut header, &mut runs);
    judge(&header, &runs, false)
}

fn has(fairness: &Fairness, id: &str) -> Option<Trust> {
    fairness.reasons.iter().find(|reason| reason.id == id).map(|reason| reason.trust)
}

#[test]
fn nothing_against_it_is_valid() {
    let fairness = verdict_of(|_, _| {});
    assert_eq!((fairness.verdict, fairness.reasons.len()), (Trust::Valid, 0), "{fairness:?}");
}

#[test]
fn each_fact_has_its_reason_and_weight() {
    let count = |runs: &mut Vec<Run>, name: &str, value: f64| {
        let counters = runs[3].counters.as_mut().unwrap();
        counters.values.insert(name.into(), Some(value));
    };
    let drive = |runs: &mut Vec<Run>, drive: DriveFacts| {
        runs[2].facts = RunFacts { drives: vec![drive], ..runs[2].facts.clone() };
    };
    type Change<'a> = Box<dyn Fn(&mut Header, &mut Vec<Run>) + 'a>;
    let cases: Vec<(&str, Trust, Change<'_>)> = vec![
        ("few-rounds", Trust::Qualified, Box::new(|_, runs| runs.truncate(6))),
        ("errors", Trust::Invalid, Box::new(|_, runs| runs[0].summary.errors = 1)),
        ("unwritten", Trust::Invalid, Box::new(|header, _| header.zeros = Some(60))),
        ("unwritten", Trust::Qualified, Box::new(|header, _| header.zeros = Some(3))),
        (
            "contents-unknown",
            Trust::Qualified,
            Box::new(|header, _| {
                header.zeros = None;
                header.matrix.devices = vec!["0000:01:00.0".into()];
            }),
        ),
        (
            "polling",
            Trust::Qualified,
            Box::new(|header, _| {
                header.matrix.variants[1].switches.set("backend", "spdk").unwrap();
            }),
        ),
        ("other-load", Trust::Qualified, Box::new(|_, runs| count(runs, "others_share", 0.1))),
        ("other-load", Trust::Invalid, Box::new(|_, runs| count(runs, "others_share", 0.4))),
        ("steal", Trust::Qualified, Box::new(|_, runs| count(runs, "steal_share", 0.05))),
        ("steal", Trust::Invalid, Box::new(|_, runs| count(runs, "steal_share", 0.2))),
        ("throttling", Trust::Invalid, Box::new(|_, runs| count(runs, "throttles", 2.0))),
        (
            "frequency",
            Trust::Qualified,
            Box::new(|_, runs| {
                count(runs, "mhz", 2000.0);
                runs[0].counters.as_mut().unwrap().values.insert("mhz".into(), Some(3000.0));
            }),
        ),
        (
            "numa",
            Trust::Qualified,
            Box::new(|_, runs| drive(runs, DriveFacts { node: Some(1), ..DriveFacts::default() })),
        ),
        (
            "link",
            Trust::Qualified,
            Box::new(|_, runs| {
                let (link_now, link_best) = (Some(3e9), Some(12e9));
                drive(runs, DriveFacts { link_now, link_best, ..DriveFacts::default() });
            }),
        ),
        (
            "iommu-strict",
            Trust::Qualified,
            Box::new(|_, runs| {
                drive(runs, DriveFacts { iommu: Some("DMA".into()), ..DriveFacts::default() });
            }),
        ),
        ("memory-node", Trust::Qualified, Box::new(|_, runs| runs[4].facts.memory_node = Some(1))),
        ("drift", Trust::Qualified, Box::new(|_, runs| runs[0].summary.iops = 500.0)),
    ];
    for (id, trust, change) in cases {
        let fairness = verdict_of(change);
        assert_eq!(has(&fairness, id), Some(trust), "{id}: {fairness:?}");
        assert_eq!(fairness.verdict, trust, "{id}");
        assert_eq!(fairness.reasons.len(), 1, "{id}: {fairness:?}");
    }
    let debug = judge(&header(), &[run(0, 0, 1.0)], true);
    assert_eq!(has(&debug, "debug-build"), Some(Trust::Invalid));
    assert_eq!(debug.verdict, debug.reasons[0].trust, "worst first");
    assert!(loads(&["4KiB".into()], &[1], &Some(vec![-1.0])).is_err());
}
