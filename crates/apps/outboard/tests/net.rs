//! `outboard serve kv --net`: the DPU side between two computers, and unmodified clients of Redis.
//!
//! Goal: GETs are answered between client and host, everything else is the host's, what is not the
//! server's passes, and the whole looks like TCP to a packet analyser. Method: three network
//! namespaces, real processes, `redis-cli`, `redis-benchmark`, and `tshark` over what was captured.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may panic")]

#[path = "../../../worlds/pageserver/tests/networks/mod.rs"]
mod networks;
mod plugins;
#[path = "../../../worlds/os/tests/skips/mod.rs"]
mod skips;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use networks::{HOST, Networks};
use rustix::process::{Pid, Signal, kill_process};

struct Server(Child);

impl Server {
    fn start(networks: &Networks, dir: &Path) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outboard"));
        command.args(["serve", "kv", "--memory", "4M", "--size", "1G", "--log", "info"]);
        command.arg(format!("--listen={HOST}:7379"));
        command.arg(format!("--net={}", networks.veth()));
        command.arg(format!("--data={}", dir.join("data").display()));
        command.arg(format!("--capture={}", dir.join("capture").display()));
        command.stdout(Stdio::piped()).stdin(Stdio::null());
        let mut child = networks.host.within(|| command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("serving kv"), "{line}");
        Server(child)
    }

    fn end(&mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Only a test that failed leaves it running.
        let _ended = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _status = self.0.wait();
    }
}

/// How many the director counted under this name, as its log says at the end.
fn counted(log: &str, name: &str) -> u64 {
    let line = log.lines().rfind(|line| line.contains("the director ends")).unwrap();
    let rest = line.split(&format!("{name}: ")).nth(1).unwrap();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// What the analyser finds in a file that is `filter`.
fn analysed(file: &Path, filter: &str) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-o", "tcp.check_checksum:TRUE"]);
    command.args(["-o", "ip.check_checksum:TRUE", "-d", "tcp.port==7379,resp", "-Y", filter]);
    command.args("-T fields -e frame.number -e _ws.col.Info -e _ws.expert.message".split(' '));
    let output = command.output().unwrap_or_else(|error| {
        panic!("cannot start tshark ({error}); `scripts/setup test` installs it")
    });
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn clients_of_redis_are_answered_between_them_and_the_host() {
    let Some(networks) = Networks::new() else {
        return skips::note_skip("net", "network namespaces take root");
    };
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(&networks, dir.path());
    let cli = |args: &str| networks.clients.run("redis-cli", &format!("-h {HOST} -p 7379 {args}"));
    assert_eq!(cli("set greeting hello"), "OK\n");
    assert_eq!(cli("get greeting"), "hello\n");
    assert_eq!(cli("--no-raw mget greeting none"), "1) \"hello\"\n2) (nil)\n");
    // Twice as much as memory holds, then read again: most of it lies in the file by now.
    let bench = |args: &str| {
        let table = networks
            .clients
            .run("redis-benchmark", &format!("-h {HOST} -p 7379 -r 1000000 -c 8 --csv {args}"));
        assert!(table.lines().count() >= 2 && !table.contains("rror"), "{table}");
    };
    bench("-n 9000 -d 1000 -P 4 -t set");
    bench("-n 3000 -t get");
    assert_eq!(cli("get greeting"), "hello\n");
    let pinged = networks.clients.run("ping", &format!("-c 2 -i 0.1 -W 5 {HOST}"));
    assert!(pinged.contains(" 0% packet loss"), "{pinged}");
    server.end();
    let log = std::fs::read_to_string(dir.path().join("data/dpu.log")).unwrap();
    assert!(counted(&log, "offloaded") > 0 && counted(&log, "forwarded") > 4, "{log}");
    assert!(counted(&log, "taken") > 9000 && counted(&log, "damaged") == 0, "{log}");

    let wrong = "_ws.malformed || tcp.checksum.status == \"Bad\" || ip.checksum.status == \"Bad\"";
    // Lost, late and doubled segments are the network's affair, and where a message goes on is its
    // client's; their kinds have this severity, too.
    let usual = "tcp.analysis.flags || tcp.flags.reset || tcp.options.sack.dsack || resp.partial \
                 || resp.reassembled_in_next_frame";
    let odd = format!("_ws.expert.severity >= \"Warning\" && !({usual})");
    for side in ["client.pcap", "host.pcap"] {
        let file = dir.path().join("capture").join(side);
        let found = analysed(&file, &format!("{wrong} || ({odd})"));
        assert!(found.is_empty(), "{side}: {:#?}", &found[..found.len().min(20)]);
        assert!(analysed(&file, "resp").len() > 1000, "{side}");
        assert!(analysed(&file, "icmp").len() >= 4 && !analysed(&file, "arp").is_empty());
    }
}

/// The plug-in was served behind kernel sockets alone, in an address of the DPU side's own.
#[test]
fn a_plugin_answers_between_clients_and_its_server() {
    let Some(networks) = Networks::new() else {
        return skips::note_skip("net", "network namespaces take root");
    };
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outboard"));
    command.args(["serve", "plugin", "--size", "1G", "--items", "1000"]);
    command.arg("--plugin").arg(plugins::compile(dir.path(), "offload.so", &[]));
    command.arg(format!("--listen={HOST}:7379")).arg(format!("--net={}", networks.veth()));
    command.arg("--buffer=32K").arg("--data").arg(dir.path().join("data"));
    // A server that knows no record; it sees its client.
    let host = networks.host.within(|| TcpListener::bind((HOST, 7379)).unwrap());
    let answering = std::thread::spawn(move || {
        let (mut stream, client) = host.accept().unwrap();
        let mut request = [0; 16];
        while stream.read_exact(&mut request).is_ok() {
            request[4..8].copy_from_slice(&1u32.to_le_bytes());
            stream.write_all(&request).unwrap();
        }
        client
    });
    command.stdout(Stdio::piped()).stdin(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut served = Server(child);
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let at = format!("{HOST}:7379");
    let said = format!("serving records at {at}; its server, at {at}, attaches to");
    assert!(line.starts_with(&said), "{line}");
    let mut client = networks.clients.within(|| TcpStream::connect((HOST, 7379)).unwrap());
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for number in 0..300 {
        client.write_all(&plugins::message(1, number)).unwrap();
        let mut answer = [0; 16];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer, *plugins::message(1, number), "no such record");
    }
    let own = client.local_addr().unwrap();
    drop(client);
    assert_eq!(answering.join().unwrap(), own, "the server sees its client's address");
    served.end();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(rest.starts_with("answered here 0, by the server 300; the plug-in failed 0"), "{rest}");
}

#[test]
fn what_cannot_be_directed_is_refused_with_what_helps() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outboard"));
        command.args(["serve", "kv", "--size", "1G"]).args(args);
        command.arg(format!("--data={}", dir.path().join("data").display()));
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let listen = "--listen=10.77.0.2:7379";
    let text = refused(&[listen, "--net=veth:one"]);
    assert!(text.contains("veth:CLIENTS,HOST"), "{text}");
    let text = refused(&[listen, "--net=veth:no-such-dev,nor-this"]);
    assert!(text.contains("no-such-dev"), "{text}");
    let text = refused(&["--listen=127.0.0.1:7379", "--net=veth:a,b"]);
    assert!(text.contains("--listen"), "{text}");
    for wrong in [["--net=veth:a,b", "--buffer=1K"], ["--net=veth:a,b", "--plain"]] {
        let text = refused(&[&[listen], &wrong[..]].concat());
        assert!(text.contains(wrong[1].split('=').next().unwrap()), "{text}");
    }
    let text = refused(&[listen, "--capture=x"]);
    assert!(text.contains("--net"), "{text}");
}
