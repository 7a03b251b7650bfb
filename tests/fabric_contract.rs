//! What every fabric must do, run on each that this machine has.

mod fabric;
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{
    BODY, CREDITS, Client, Fabric, Manner, PATIENCE, Rdma, SLOT, SLOTS, Server, Tcp,
    connect_config, endpoint_config,
};
use millrace::Error;
use millrace::error::Kind;
use millrace::fabric::{Channel, Closed, ConnectConfig};
use millrace::memory::seal;

#[global_allocator]
static ALLOCATOR: seal::CountingAllocator = seal::CountingAllocator;

/// Each function of [`contract`] becomes one test per fabric.
macro_rules! contract_tests {
    ($($name:ident),* $(,)?) => {
        mod tcp {
            $(#[test]
            fn $name() {
                super::contract::$name::<super::Tcp>();
            })*
        }

        mod rdma {
            $(#[test]
            fn $name() {
                if super::rdma_is_here() {
                    super::contract::$name::<super::Rdma>();
                }
            })*
        }
    };
}

contract_tests!(
    data_is_right_at_every_size,
    answers_may_come_in_any_order,
    error_records_carry_no_payload,
    credits_bound_the_client,
    places_are_reused_with_new_generations,
    tokens_are_checked,
    a_full_server_says_so,
    a_server_that_drains_refuses_new_ones,
    the_server_can_close,
    killed_clients_cost_no_slot_and_hurt_nobody,
    unanswered_requests_come_back_to_the_client,
    a_server_dropped_in_flight_ends_its_clients,
    many_connections_are_all_served,
    steady_state_allocates_nothing,
    bodies_are_pulled_whole,
    a_body_that_is_refused_is_thrown_away,
    a_pull_on_a_closed_connection_comes_back,
    a_pull_that_is_cut_off_comes_back,
    clients_that_die_within_a_body_cost_no_slot,
);

/// Says so for the running test if it is not.
fn rdma_is_here() -> bool {
    let here = fabric::rdma_address().is_some();
    if !here {
        support::skip(&support::this_test(), "no RDMA device here; tests/guest/rdma.sh runs it");
    }
    here
}

mod contract {
    use super::*;

    pub fn data_is_right_at_every_size<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Prompt);
        let mut client = Client::connect::<F>(server.addr);
        assert_eq!(client.channel.welcome().credits.get(), CREDITS);
        assert_eq!(client.channel.welcome().backend_name(), "mem");
        let sizes = [1, 8, 63, 64, 65, 512, 4096, 4097, 32_767, 32_768, 65_535, 65_536];
        client.run(600, |n| sizes[n as usize % sizes.len()]);
        client.run(600, |n| sizes[(n * n) as usize % sizes.len()]);
        assert_eq!(client.abandon(), 0);
        let log = server.stop();
        assert_eq!((log.requests, log.sent, log.undelivered), (1200, 1200, 0));
        assert_eq!(log.slots_left, SLOTS);
    }

    pub fn answers_may_come_in_any_order<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Reverse);
        let mut client = Client::connect::<F>(server.addr);
        client.run(1000, |n| [4096, 40_000, 100][n as usize % 3]);
        assert_eq!(server.stop().slots_left, SLOTS);
    }

    pub fn error_records_carry_no_payload<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Faulty);
        let mut client = Client::connect::<F>(server.addr);
        client.run(300, |_| 4096);
        assert_eq!(client.errors, 100);
        assert_eq!(server.stop().slots_left, SLOTS);
    }

    pub fn credits_bound_the_client<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Mute);
        let mut client = Client::connect::<F>(server.addr);
        let taken = (0..CREDITS + 1).filter(|_| client.submit(4096)).count();
        assert_eq!(taken, usize::from(CREDITS));
        assert_eq!(client.channel.in_flight(), u32::from(CREDITS));
        client.channel.flush().unwrap();
        assert_eq!(client.abandon(), usize::from(CREDITS));
    }

    pub fn places_are_reused_with_new_generations<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Prompt);
        let mut seen = Vec::new();
        for _ in 0..5 {
            let mut client = Client::connect::<F>(server.addr);
            seen.push(server.opened());
            client.run(5, |_| 4096);
            client.abandon();
            assert!(matches!(server.ended(), Closed::ByPeer | Closed::Transport));
        }
        assert!(seen.iter().all(|conn| conn.index == seen[0].index));
        seen.sort_by_key(|conn| conn.generation);
        seen.dedup();
        assert_eq!(seen.len(), 5);
    }

    fn failure<F: Fabric>(to: SocketAddr, token: Option<&str>) -> Error {
        let token = token.map(|text| Arc::from(text.as_bytes()));
        let config = ConnectConfig { token, ..connect_config() };
        let pool = fabric::pool(1);
        F::connect(to, &config, &pool).err().expect("the server refuses")
    }

    pub fn tokens_are_checked<F: Fabric>() {
        let mut config = endpoint_config();
        config.token = Some(Arc::from(&b"right"[..])).into();
        let server = Server::start::<F>(config, Manner::Prompt);
        let error = failure::<F>(server.addr, Some("wrong"));
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.what().contains("tokens of the two sides differ"), "{error}");
        assert_eq!(server.ended(), Closed::Unauthenticated);
        assert_eq!(failure::<F>(server.addr, None).kind(), Kind::Denied);
        let right = ConnectConfig { token: Some(Arc::from(&b"right"[..])), ..connect_config() };
        F::connect(server.addr, &right, &fabric::pool(1)).unwrap();
    }

    pub fn a_full_server_says_so<F: Fabric>() {
        let mut config = endpoint_config();
        config.max_connections = 2;
        let server = Server::start::<F>(config, Manner::Prompt);
        let one = Client::connect::<F>(server.addr);
        let mut two = Client::connect::<F>(server.addr);
        let error = failure::<F>(server.addr, None);
        assert!(error.what().contains("as many connections as it takes"), "{error}");
        assert!(error.remedy_text().is_some_and(|text| text.contains("--max-connections")));
        two.run(10, |_| 4096);
        one.abandon();
        server.ended();
        // Its place is free once the listener has heard of it.
        let until = Instant::now() + PATIENCE;
        while F::connect(server.addr, &connect_config(), &fabric::pool(1)).is_err() {
            assert!(Instant::now() < until, "the place never becomes free");
        }
    }

    pub fn a_server_that_drains_refuses_new_ones<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Prompt);
        let mut client = Client::connect::<F>(server.addr);
        server.refuse_new();
        let until = Instant::now() + PATIENCE;
        let error = loop {
            assert!(Instant::now() < until, "it never refuses");
            match F::connect(server.addr, &connect_config(), &fabric::pool(1)) {
                Ok(_) => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => break error,
            }
        };
        assert!(error.what().contains("shutting down"), "{error}");
        client.run(50, |_| 4096);
    }

    pub fn the_server_can_close<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Mute);
        let mut client = Client::connect::<F>(server.addr);
        let conn = server.opened();
        assert!(client.submit(4096));
        client.channel.flush().unwrap();
        server.close(conn);
        assert_eq!(server.ended(), Closed::ByUs);
        let until = Instant::now() + PATIENCE;
        while client.poll().is_ok() {
            assert!(Instant::now() < until, "the client is never told");
        }
        assert!(client.poll().is_err(), "it stays dead");
        assert_eq!(client.abandon(), 1);
    }

    pub fn killed_clients_cost_no_slot_and_hurt_nobody<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Prompt);
        let mut steady = Client::connect::<F>(server.addr);
        for n in 0..200 {
            let mut victim = Client::connect::<F>(server.addr);
            while victim.submit(SLOT as u32) {}
            victim.channel.flush().unwrap();
            for _ in 0..n % 7 {
                victim.poll().unwrap();
            }
            victim.abandon();
            steady.run(10, |_| 8192);
        }
        assert_eq!(steady.abandon(), 0);
        let log = server.stop();
        assert_eq!(log.slots_left, SLOTS);
        assert_eq!(log.opened.len(), 201);
    }

    pub fn unanswered_requests_come_back_to_the_client<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Mute);
        let mut client = Client::connect::<F>(server.addr);
        assert!(client.submit(4096) && client.submit(8192));
        client.channel.flush().unwrap();
        assert_eq!(client.abandon(), 2);
        server.ended();
        assert_eq!(server.stop().slots_left, SLOTS);
    }

    pub fn a_server_dropped_in_flight_ends_its_clients<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Prompt);
        let mut client = Client::connect::<F>(server.addr);
        while client.submit(SLOT as u32) {}
        client.channel.flush().unwrap();
        assert_eq!(server.stop().slots_left, SLOTS);
        let until = Instant::now() + PATIENCE;
        while client.poll().is_ok() {
            assert!(Instant::now() < until, "the client is never told");
        }
        client.abandon();
    }

    pub fn many_connections_are_all_served<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Prompt);
        let mut clients: Vec<_> = (0..40).map(|_| Client::connect::<F>(server.addr)).collect();
        for _ in 0..3 {
            for client in &mut clients {
                while client.submit(SLOT as u32) {}
                client.channel.flush().unwrap();
            }
            // Nobody reads for a while, so most answers wait for slots and sockets.
            std::thread::sleep(Duration::from_millis(50));
            let until = Instant::now() + PATIENCE;
            while clients.iter().any(|client| client.channel.in_flight() > 0) {
                assert!(Instant::now() < until, "some answers never come");
                for client in &mut clients {
                    client.poll().unwrap();
                }
            }
        }
        drop(clients);
        let log = server.stop();
        assert_eq!(log.requests, 3 * 40 * u64::from(CREDITS));
        assert_eq!(log.slots_left, SLOTS);
    }

    pub fn bodies_are_pulled_whole<F: Fabric>() {
        for manner in [Manner::Prompt, Manner::Reverse] {
            let server = Server::start::<F>(endpoint_config(), manner);
            let mut clients: Vec<_> = (0..3).map(|_| Client::connect::<F>(server.addr)).collect();
            let sizes = [1, 7, 64, 511, 512, 3583, 3584, 3585, 4096, 40_000, BODY - 1, BODY];
            for client in &mut clients {
                client.run_by(200, |client, n| client.put(sizes[n as usize % sizes.len()]));
                client.run_mixed(400, |n| sizes[n as usize % sizes.len()]);
                assert_eq!(client.errors, 0);
            }
            clients.into_iter().for_each(|client| assert_eq!(client.abandon(), 0));
            let log = server.stop();
            assert!(log.pulled > 3 * 300, "{} of {}", log.pulled, log.requests);
            assert_eq!((log.requests, log.sent, log.cut_off), (1800, 1800, 0));
            assert_eq!(log.slots_left, SLOTS);
        }
    }

    pub fn a_body_that_is_refused_is_thrown_away<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Faulty);
        let mut client = Client::connect::<F>(server.addr);
        client.run_by(300, |client, n| client.put([1, 600, BODY][n as usize % 3]));
        assert_eq!(client.errors, 100);
        // Longer than all that the sockets between the two sides hold.
        client.run_mixed(900, |_| BODY);
        assert_eq!(client.errors, 400);
        assert_eq!(client.abandon(), 0);
        assert_eq!(server.stop().slots_left, SLOTS);
    }

    pub fn a_pull_on_a_closed_connection_comes_back<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Late);
        let mut steady = Client::connect::<F>(server.addr);
        for n in 1..5 {
            let mut client = Client::connect::<F>(server.addr);
            (0..n).for_each(|_| assert!(client.put(BODY)));
            client.channel.flush().unwrap();
            assert_eq!(server.ended(), Closed::ByUs);
            let until = Instant::now() + PATIENCE;
            while client.poll().is_ok() {
                assert!(Instant::now() < until, "the client is never told");
                let _ = client.channel.flush();
            }
            assert_eq!(client.abandon(), n);
            steady.run(10, |_| 4096);
        }
        let log = server.stop();
        assert_eq!(log.pulled, 0);
        assert!(log.cut_off >= 4);
        assert_eq!(log.slots_left, SLOTS);
    }

    pub fn a_pull_that_is_cut_off_comes_back<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Cutting);
        let mut steady = Client::connect::<F>(server.addr);
        for _ in 0..30 {
            let mut client = Client::connect::<F>(server.addr);
            let until = Instant::now() + PATIENCE;
            loop {
                assert!(Instant::now() < until, "the client is never told");
                while client.put(BODY) {}
                if client.channel.flush().is_err() || client.poll().is_err() {
                    break;
                }
            }
            client.abandon();
            steady.run(10, |_| 4096);
        }
        let log = server.stop();
        assert!(log.cut_off > 0 && log.pulled > 0, "{log:?}");
        assert_eq!(log.slots_left, SLOTS);
    }

    pub fn clients_that_die_within_a_body_cost_no_slot<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Prompt);
        let mut steady = Client::connect::<F>(server.addr);
        for n in 0..100 {
            let mut victim = Client::connect::<F>(server.addr);
            while victim.put(BODY) {}
            victim.channel.flush().unwrap();
            for _ in 0..n % 7 {
                victim.poll().unwrap();
            }
            victim.abandon();
            steady.run_mixed(10, |_| 8192);
        }
        assert_eq!(steady.abandon(), 0);
        assert_eq!(server.stop().slots_left, SLOTS);
    }

    pub fn steady_state_allocates_nothing<F: Fabric>() {
        let server = Server::start::<F>(endpoint_config(), Manner::Prompt);
        let mut clients: Vec<_> = (0..3).map(|_| Client::connect::<F>(server.addr)).collect();
        clients.iter_mut().for_each(|client| client.run(100, |_| 4096));
        clients.iter_mut().for_each(|client| client.run_mixed(100, |_| 4096));
        server.seal(true);
        let before = seal::sealed_allocations();
        seal::seal();
        for _ in 0..5 {
            for client in &mut clients {
                client.run(200, |n| [512, 4096, SLOT as u32][n as usize % 3]);
                client.run_mixed(200, |n| [512, 4096, BODY][n as usize % 3]);
            }
        }
        let ours = seal::sealed_allocations() - before;
        drop(std::hint::black_box(Box::new(1)));
        seal::unseal();
        assert!(seal::sealed_allocations() >= before + ours + 2, "the count works");
        server.seal(false);
        assert_eq!(ours, 0, "allocations of server and client in steady state");
        server.stop();
    }
}
