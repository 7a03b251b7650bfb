use super::*;

#[test]
fn the_published_figures_are_met() {
    let table = published();
    assert!(table.iter().filter(|row| !row.calibrates).count() >= 8);
    for row in table {
        let (least, most) = row.range;
        let near = row.predicted >= least * 0.97 && row.predicted <= most * 1.03;
        assert!(near, "{}: {} {} for {least} to {most}", row.what, row.predicted, row.unit);
    }
}

#[test]
fn the_walls_are_those_that_were_found() {
    let wall = |what: &str| {
        let table = published();
        table.iter().find(|row| row.what == what).unwrap_or_else(|| panic!("{what}")).wall.unwrap()
    };
    assert_eq!(wall("1 worker, plain reads, depth 16"), Wall::Cpu);
    assert_eq!(wall("1 worker, registered, depth 64"), Wall::Nic);
    assert_eq!(wall("8 shards, 4 KiB pages, CRC"), Wall::Cpu);
    assert_eq!(wall("8 shards, 4 KiB pages, touch"), Wall::Cpu);
    assert_eq!(wall("8 shards, 4 KiB pages, no check"), Wall::Nic);
    assert_eq!(wall("8 shards, 1 GiB pages, CRC"), Wall::Nic);
}

fn load() -> Load {
    Load {
        shards: 1,
        client_nics: 1,
        payload: f64::from(1 << 20),
        on_drive: f64::from(1028 << 10),
        page: f64::from(2 << 20),
        pinned_per_read: false,
        access: Access::Crc,
    }
}

/// Takes a part away until it is the wall.
#[test]
fn each_part_can_be_the_wall() {
    let costs = Costs::published();
    let shard = || published_shard(8, 64);
    let wall = |shard: &Shard, load: &Load| predict(shard, load, &costs).wall;
    assert_eq!(wall(&shard(), &load()), Wall::Nic);
    assert_eq!(wall(&Shard { drives: 4, ..shard() }, &load()), Wall::Drive);
    assert_eq!(wall(&Shard { drive_iops: 1000.0, ..shard() }, &load()), Wall::Drive);
    assert_eq!(wall(&Shard { workers: 1, ..shard() }, &load()), Wall::Cpu);
    assert_eq!(wall(&Shard { workers: 1, depth: 1, ..shard() }, &load()), Wall::Depth);
    let gen4 = Some(Link { gigatransfers: 16.0, lanes: 16 });
    assert_eq!(wall(&Shard { nic_link: gen4, ..shard() }, &load()), Wall::Pcie);
    let slow = Some(100.0 * GIB);
    assert_eq!(wall(&Shard { memory_bytes_per_sec: slow, ..shard() }, &load()), Wall::Memory);
    assert_eq!(wall(&shard(), &Load { shards: 4, client_nics: 2, ..load() }), Wall::Client);
}

#[test]
fn more_of_anything_is_never_slower_and_shards_add_up() {
    let costs = Costs::published();
    let of = |shard: &Shard, load: &Load| predict(shard, load, &costs).bytes_per_sec;
    let small = Shard { workers: 1, depth: 1, drives: 1, ..published_shard(1, 1) };
    let base = of(&small, &load());
    for better in [
        Shard { workers: 2, ..small.clone() },
        Shard { depth: 2, ..small.clone() },
        Shard { drives: 2, ..small.clone() },
        Shard { nic_gbit: 800.0, ..small.clone() },
    ] {
        assert!(of(&better, &load()) >= base, "{better:?}");
    }
    let four = Load { shards: 4, client_nics: 4, ..load() };
    assert!((of(&small, &four) / base - 4.0).abs() < 1e-9);
}
