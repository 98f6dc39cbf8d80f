//! The key-value server in both forms, against a map.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use outboard_base::Rng;
use outboard_servers::kv::Ended;

use crate::rig::{Answer, Client, Dpu, Host, encode};

fn text(text: &str) -> Answer {
    Answer::Bulk(Some(text.as_bytes().to_vec()))
}

fn ok() -> Answer {
    Answer::Simple("OK".into())
}

fn speaks_like_redis(client: &mut Client) {
    let array = |items: Vec<Answer>| Answer::Array(items);
    let script = [
        ("PING", Answer::Simple("PONG".into())),
        ("ping hello", text("hello")),
        ("ECHO hello", text("hello")),
        ("SET a 1", ok()),
        ("GET a", text("1")),
        ("get none", Answer::Bulk(None)),
        ("INCR a", Answer::Integer(2)),
        ("INCRBY a 40", Answer::Integer(42)),
        ("DECR a", Answer::Integer(41)),
        ("DECRBY n 2", Answer::Integer(-2)),
        ("APPEND a x", Answer::Integer(3)),
        ("INCR a", Answer::Error("ERR value is not an integer or out of range".into())),
        ("STRLEN a", Answer::Integer(3)),
        ("MSET b 2 c 3", ok()),
        ("MGET a none b c", array(vec![text("41x"), Answer::Bulk(None), text("2"), text("3")])),
        ("EXISTS a b none a", Answer::Integer(3)),
        ("DEL a none b", Answer::Integer(2)),
        ("GET a", Answer::Bulk(None)),
        ("SETNX c 4", Answer::Integer(0)),
        ("GETSET c 5", text("3")),
        ("TYPE c", Answer::Simple("string".into())),
        ("DBSIZE x", Answer::Error("ERR wrong number of arguments for 'dbsize' command".into())),
        ("GET", Answer::Error("ERR wrong number of arguments for 'get' command".into())),
        ("SELECT 1", Answer::Error("ERR DB index is out of range".into())),
        ("SELECT 0", ok()),
        ("CONFIG GET save", array(vec![text("save"), text("")])),
        ("COMMAND DOCS", array(vec![])),
        (
            "NOSUCH x",
            Answer::Error("ERR unknown command 'NOSUCH', with args beginning with: 'x' ".into()),
        ),
        // go-redis, and YCSB with it, gave up on `NOPROTO`, the answer of a Redis that knows both.
        (
            "HELLO 3",
            Answer::Error("ERR unknown command 'HELLO', with args beginning with: '3' ".into()),
        ),
        ("FLUSHALL", ok()),
        ("GET c", Answer::Bulk(None)),
        ("EXISTS c", Answer::Integer(0)),
    ];
    for (command, answer) in script {
        assert_eq!(client.ask_words(command), answer, "{command}");
    }
    client.send(b"SET inline yes\r\nGET inline\r\n\r\nGET\tinline\n");
    let answers = [client.receive(), client.receive(), client.receive()];
    assert_eq!(answers, [ok(), text("yes"), text("yes")]);
}

#[test]
fn the_plain_form_speaks_like_redis() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::plain(dir.path());
    speaks_like_redis(&mut Client::new(&host.address));
    let mut client = Client::new(&host.address);
    client.send(b"*1\r\nx");
    assert!(matches!(client.receive(), Answer::Error(text) if text.contains("expected '$'")));
    assert_eq!(client.try_receive(), None, "closed");
    let mut client = Client::new(&host.address);
    client.send(&[encode(&[b"GET", b"inline"]), b"*2\r\n$3".to_vec()].concat());
    client.end();
    assert_eq!(client.receive(), text("yes"));
    assert_eq!(client.try_receive(), None, "half a command is answered by nothing");
    assert_eq!(host.stop(), Ended::Told);
}

#[test]
fn the_offload_form_speaks_like_redis() {
    let dir = tempfile::tempdir().unwrap();
    let dpu = Dpu::start(dir.path());
    let host = Host::over_dpu(dir.path());
    speaks_like_redis(&mut Client::new(dpu.front.address()));
    let mut client = Client::new(dpu.front.address());
    client.send(b"*1\r\nx");
    assert!(matches!(client.receive(), Answer::Error(text) if text.contains("expected '$'")));
    assert_eq!(client.try_receive(), None, "closed");
    let mut client = Client::new(dpu.front.address());
    client.send(&[encode(&[b"GET", b"inline"]), b"*2\r\n$3".to_vec()].concat());
    client.end();
    assert_eq!(client.receive(), text("yes"));
    assert_eq!(client.try_receive(), None, "half a command is answered by nothing");
    assert_eq!(host.stop(), Ended::Told);
}

fn value(rng: &mut Rng, n: u64) -> Vec<u8> {
    let len = usize::try_from(rng.below(3000)).unwrap();
    let mut value = format!("{n}:").into_bytes();
    value.resize(value.len() + len, b'x');
    value
}

/// Random commands in pipelines of every length, against a map; the log is far larger than memory.
fn follows_a_map(client: &mut Client, rng: &mut Rng, model: &mut HashMap<Vec<u8>, Vec<u8>>) {
    let key = |rng: &mut Rng| format!("key:{}", rng.below(3000)).into_bytes();
    for round in 0..400 {
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for n in 0..=rng.below(40) {
            let name = key(rng);
            match rng.below(10) {
                0..=3 => {
                    let value = value(rng, round * 100 + n);
                    bytes.extend(encode(&[b"SET", &name, &value]));
                    model.insert(name, value);
                    expected.push(ok());
                }
                4 => {
                    bytes.extend(encode(&[b"DEL", &name]));
                    expected.push(Answer::Integer(model.remove(&name).is_some().into()));
                }
                5 => {
                    let other = key(rng);
                    bytes.extend(encode(&[b"MGET", &name, &other]));
                    let of = |key| Answer::Bulk(model.get(key).cloned());
                    expected.push(Answer::Array(vec![of(&name), of(&other)]));
                }
                6 => {
                    bytes.extend(encode(&[b"APPEND", &name, b"+"]));
                    let value = model.entry(name).or_default();
                    value.push(b'+');
                    expected.push(Answer::Integer(i64::try_from(value.len()).unwrap()));
                }
                _ => {
                    bytes.extend(encode(&[b"GET", &name]));
                    expected.push(Answer::Bulk(model.get(&name).cloned()));
                }
            }
        }
        // In two pieces, cut anywhere.
        let cut = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
        client.send(&bytes[..cut]);
        client.send(&bytes[cut..]);
        for (n, expected) in expected.into_iter().enumerate() {
            let got = client.receive();
            assert!(got == expected, "round {round} answer {n}: {got:.200?}, not {expected:.200?}");
        }
    }
}

fn all_is_there(client: &mut Client, model: &HashMap<Vec<u8>, Vec<u8>>) {
    for n in 0..3000 {
        let name = format!("key:{n}").into_bytes();
        let got = client.ask(&[b"GET", &name]);
        assert!(got == Answer::Bulk(model.get(&name).cloned()), "{n}: {got:.100?}");
    }
}

#[test]
fn the_plain_form_keeps_what_it_was_told() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rng, mut model) = (Rng::new(11), HashMap::new());
    for _ in 0..3 {
        let host = Host::plain(dir.path());
        let mut client = Client::new(&host.address);
        all_is_there(&mut client, &model);
        follows_a_map(&mut client, &mut rng, &mut model);
        drop(client);
        host.stop();
    }
}

#[test]
fn the_offload_form_keeps_what_it_was_told_and_answers_cold_reads_without_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rng, mut model) = (Rng::new(12), HashMap::new());
    for life in 0..3 {
        let dpu = Dpu::start(dir.path());
        let host = Host::over_dpu(dir.path());
        let mut client = Client::new(dpu.front.address());
        all_is_there(&mut client, &model);
        follows_a_map(&mut client, &mut rng, &mut model);
        all_is_there(&mut client, &model);
        let tally = dpu.front.tally();
        let offloaded = tally.offloaded.load(Ordering::Relaxed);
        println!("life {life}: {tally:?}");
        assert!(offloaded > 300, "{tally:?}");
        drop(client);
        host.stop();
        drop(dpu);
    }
}
