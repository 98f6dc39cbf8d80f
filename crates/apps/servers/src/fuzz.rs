//! The bodies of this crate's fuzz targets, one a protocol of clients: any bytes in, no panic out,
//! and what is accepted means the same however the stream was cut. `fuzz/` drives them with
//! libFuzzer, the tests with seeded bytes.

use crate::pages::wire::{self, Framed, Request};
use crate::resp::{self, AnswerScan, Answered, Parsed, Parser};

/// RESP2, commands and answers.
pub fn resp(data: &[u8]) {
    let (mut args, mut again) = (Vec::new(), Vec::new());
    match resp::parse(data, &mut args) {
        Parsed::Command(len) => {
            let whole = data.get(..len).unwrap_or_default();
            assert!((1..=data.len()).contains(&len) && args.iter().all(|arg| arg.end <= len));
            assert_eq!(resp::parse(whole, &mut again), Parsed::Command(len));
            assert_eq!(again, args);
            let short = data.get(..len - 1).unwrap_or_default();
            assert!(matches!(resp::parse(short, &mut again), Parsed::More(more) if more <= len));
        }
        Parsed::More(more) => assert!(more > data.len()),
        Parsed::Invalid(_) => {}
    }
    match resp::answer(data) {
        Answered::Whole(len) => {
            let whole = data.get(..len).unwrap_or_default();
            assert_eq!(resp::answer(whole), Answered::Whole(len));
            let short = data.get(..len - 1).unwrap_or_default();
            assert!(matches!(resp::answer(short), Answered::More(more) if more <= len));
        }
        Answered::More(more) => assert!(more > data.len()),
        Answered::Invalid => {}
    }
}

/// The same in pieces: what is found is as in the whole, and nothing is said before it can be.
pub fn resp_in_pieces(data: &[u8]) {
    let Some((piece, data)) = data.split_first() else { return };
    let ends = || (0..=data.len()).step_by(usize::from(*piece % 8) + 1).chain([data.len()]);
    let mut args = Vec::new();
    let (mut parser, mut scan) = (Parser::default(), AnswerScan::default());
    let (mut parsed, mut found) = (Parsed::More(0), Answered::More(0));
    for end in ends() {
        let bytes = data.get(..end).unwrap_or_default();
        if matches!(parsed, Parsed::More(_)) {
            parsed = parser.parse(bytes);
            assert_eq!(parsed, resp::parse(bytes, &mut args));
            assert!(!matches!(parsed, Parsed::Command(_)) || parser.args() == args);
        }
        if matches!(found, Answered::More(_)) {
            let from = scan.passed().min(end);
            found = scan.run(bytes.get(from..).unwrap_or_default(), from);
            assert_eq!(found, resp::answer(bytes));
            scan = AnswerScan::of_words(scan.words());
        }
    }
}

/// Requests of the page server.
pub fn pages(data: &[u8]) {
    match wire::frame(data) {
        Framed::Whole(len) => {
            let message = data.get(..len).unwrap_or_default();
            if let Some(request) = Request::parse(message) {
                assert_eq!(request.emit(), message);
            }
        }
        Framed::More(more) => assert!(more > data.len()),
        Framed::Invalid => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn clients_send_what_they_like(
            words in prop::collection::vec(
                prop_oneof![
                    prop::sample::select(vec![
                        "*", "$", "+", "-", ":", "\r\n", "\n", "\r", "1", "2", "3", "-1", " ", "0",
                        "*1\r\n", "*2\r\n", "$3\r\nGET\r\n", "$-1\r\n", "$0\r\n\r\n", ":12\r\n",
                    ])
                    .prop_map(|word| word.as_bytes().to_vec()),
                    prop::collection::vec(any::<u8>(), 1..5),
                ],
                0..16,
            ),
        ) {
            let data = words.concat();
            resp(&data);
            resp_in_pieces(&data);
        }

        #[test]
        fn databases_send_what_they_like(
            len in 0u32..9000,
            opcode in 0u8..4,
            zero in prop_oneof![9 => Just(0u8), 1 => any::<u8>()],
            rest in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut data = [&len.to_le_bytes()[..], &[opcode, zero], &rest].concat();
            pages(&data);
            if let Ok(len) = u32::try_from(data.len()) {
                data[..4].copy_from_slice(&len.to_le_bytes());
            }
            pages(&data);
        }
    }
}
