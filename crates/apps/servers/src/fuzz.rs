//! The bodies of this crate's fuzz targets, one a protocol of clients: any bytes in, no panic out,
//! and what is accepted means the same however the stream was cut. `fuzz/` drives them with
//! libFuzzer, the tests with seeded bytes.

use crate::pages::wire::{self, Framed, Request};
use crate::resp::{self, Answered, Parsed};

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
            resp(&words.concat());
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
