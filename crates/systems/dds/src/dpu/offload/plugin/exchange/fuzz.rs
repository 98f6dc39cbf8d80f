//! The body of the fuzz target `plugin`: any bytes as the batch in the memory that a plug-in's
//! process shares, read as either side reads it. What comes of them is within its bounds, and says
//! itself again. `fuzz/` drives it with libFuzzer, the tests with batches that were damaged.

use super::*;

/// Longest message of the director that the batch may speak about here.
const MESSAGE: usize = 255;

/// What was parsed means something to who follows it.
fn follow(said: &Said, message: usize) {
    let Said::Divided(division, plans) = said else { return };
    let asks = division.parts().iter().filter(|part| matches!(part, Part::Dpu { .. }));
    assert_eq!(asks.count(), plans.len(), "each part of the DPU side has its plan");
    assert!(division.parts().len() <= SLOTS_MAX && division.made().len() <= MESSAGE_MAX);
    for part in division.parts() {
        let (Part::Literal(span)
        | Part::Host { request: span, .. }
        | Part::Dpu { request: span, .. }) = part;
        let (range, most) = match span {
            Span::Message(range) => (range, message),
            Span::Made(range) => (range, division.made().len()),
        };
        assert!(range.start <= range.end && range.end <= most, "{range:?} of {most}");
    }
    for Plan { read, answering } in plans {
        let most = usize::try_from(read.bytes).unwrap_or(usize::MAX);
        assert!(most <= BUFFER_MAX && answering.expect.len() <= EXPECT_MAX);
        assert!(answering.payload.start <= answering.payload.end && answering.payload.end <= most);
        // As long as was asked for, and as short as a file may be.
        for len in [most, most / 2, 0] {
            if let Some(answer) = answering.answer(&vec![0; len]) {
                assert!(answer.payload.end <= len, "within what was read");
            }
        }
    }
}

/// The first byte is the length of the message that the batch speaks about; the rest is the batch.
pub fn plugin(data: &[u8]) {
    let Some((&message, bytes)) = data.split_first() else { return };
    let message = usize::from(message).min(MESSAGE);
    let Some(all) = entries(bytes) else { return };
    let mut batch = Batch::new(usize::MAX);
    for (kind, body) in all {
        if let Some(said) = Said::parse(kind, body, message) {
            follow(&said, message);
            batch.clear();
            assert!(batch.say(&said), "what was said can be said");
            let again = entries(batch.bytes()).unwrap_or_default();
            let heard = again.first().and_then(|(kind, body)| Said::parse(*kind, body, message));
            assert_eq!(format!("{heard:?}"), format!("{:?}", Some(said)), "and is the same");
        }
        if let Some(Asked::Divide { known, .. }) = Asked::parse(kind, body) {
            assert!(known.len() <= KNOWN_MAX);
        }
    }
}
