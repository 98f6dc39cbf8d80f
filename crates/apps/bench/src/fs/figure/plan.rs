//! Who is compared with whom in which figure, and at what.
//!
//! | | Figure 7, Table 2 | Figure 8 |
//! |---|---|---|
//! | plain, fuse | direct | the kernel's page cache |
//! | mount | direct, default settings | `--cache` `kernel`, `hybrid`, and `none` for direct |
//! | user-space path | direct | a hybrid cache of its own |
//!
//! In Figure 8 a hybrid cache holds half of the file. Random operations go to a quarter of the
//! file, so that they can hit; sequential reads go through all of it, and where the kernel caches,
//! its pages are forgotten at the beginning of each pass, so that only what is read ahead can hit.
//! Without read-ahead means `POSIX_FADV_RANDOM` to the kernel and `--prefetch none` to a DPU side;
//! the latter is a volume and an attachment of its own. A passthrough cannot be asked for it: its
//! source is read ahead all the same, so it takes no part there.

use std::io;
use std::path::Path;

use outboard_base::Rng;

use super::super::reach::Reach;
use super::super::subject::{Ask, Subject};
use super::{Figure, FsFigure};
use crate::workload::MEGABYTE;

/// Bytes of a small operation.
pub(super) const SMALL: usize = 8192;

/// One point of a figure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) operation: &'static str,
    pub(super) size: usize,
    pub(super) threads: usize,
    pub(super) write: bool,
    pub(super) direct: bool,
    pub(super) sequential: bool,
    /// Bytes of the file that are used, from its beginning.
    pub(super) span: u64,
    /// Whether this is about read-ahead, and then with or without.
    pub(super) read_ahead: Option<bool>,
}

impl Job {
    /// What thread number `thread` does, one after the other: random blocks of the span, or its
    /// part of it in order and again.
    pub(super) fn blocks(&self, thread: u64) -> Blocks {
        let size = self.size as u64;
        let (all, threads) = ((self.span / size).max(1), self.threads.max(1) as u64);
        let part = (all / threads).max(1);
        let order = if self.sequential {
            Order::Sequential { first: thread % threads * part % all, part, count: 0 }
        } else {
            Order::Random { rng: Rng::new(thread), all }
        };
        Blocks { order, size, forgets: self.read_ahead.is_some() }
    }
}

/// A thread's way through the file.
pub(super) struct Blocks {
    order: Order,
    size: u64,
    forgets: bool,
}

enum Order {
    Random { rng: Rng, all: u64 },
    Sequential { first: u64, part: u64, count: u64 },
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) at: u64,
    /// Offset and length of what the kernel is asked to forget before.
    pub(super) forget: Option<(u64, u64)>,
}

impl Blocks {
    pub(super) fn next_block(&mut self) -> Block {
        match &mut self.order {
            Order::Random { rng, all } => Block { at: rng.below(*all) * self.size, forget: None },
            Order::Sequential { first, part, count } => {
                let index = *count % *part;
                *count += 1;
                let begins = index == 0 && self.forgets;
                let forget = begins.then_some((*first * self.size, *part * self.size));
                Block { at: (*first + index) * self.size, forget }
            }
        }
    }
}

/// The points of a figure, in the order they are measured.
pub(super) fn jobs(figure: &FsFigure) -> Vec<Job> {
    let span = figure.file_len;
    let random = |operation, write, direct, span| Job {
        operation,
        size: SMALL,
        threads: 0,
        write,
        direct,
        sequential: false,
        span,
        read_ahead: None,
    };
    let ahead = |operation, read_ahead| Job {
        sequential: true,
        read_ahead: Some(read_ahead),
        ..random(operation, false, false, span)
    };
    let large = |operation, write| Job {
        size: MEGABYTE,
        sequential: true,
        ..random(operation, write, true, span)
    };
    let kinds = match figure.figure {
        Figure::Figure7 => {
            vec![random("random read", false, true, span), random("random write", true, true, span)]
        }
        Figure::Figure8 => vec![
            random("random read", false, false, span / 4),
            random("random write", true, false, span / 4),
            ahead("sequential read", true),
            ahead("sequential read, no prefetch", false),
        ],
        Figure::Table2 => vec![large("sequential read", false), large("sequential write", true)],
    };
    let at = |kind: Job| figure.threads.iter().map(move |&threads| Job { threads, ..kind });
    kinds.into_iter().flat_map(at).collect()
}

/// One system in the comparison. The way to the file goes before what serves it.
pub(super) struct Contestant {
    pub(super) reach: Reach,
    pub(super) subject: Subject,
    /// Takes part where read-ahead is not the question.
    always: bool,
    /// Takes part with read-ahead, without it, or in both.
    read_ahead: &'static [bool],
}

/// All systems of a figure.
pub(super) struct Field(Vec<Contestant>);

impl Drop for Field {
    /// Backwards: who uses a volume goes before who serves it.
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

impl Field {
    /// Starts them all, each with its file made.
    pub(super) fn new(figure: &FsFigure, mut progress: impl FnMut(&str)) -> io::Result<Field> {
        let delay = format!("--read-delay={}", figure.read_delay.as_micros());
        let ask =
            Ask { dir: &figure.dir, program: &figure.program, flags: &[&delay], apart: false };
        let mut field = Field(Vec::new());
        match figure.figure {
            Figure::Figure7 | Figure::Table2 => field.direct(&ask)?,
            Figure::Figure8 => field.cached(&ask, figure.file_len / 2)?,
        }
        for contestant in &field.0 {
            progress(&format!("making the file of {}", contestant.subject.name));
            contestant.reach.make(figure.file_len)?;
        }
        Ok(field)
    }

    fn direct(&mut self, ask: &Ask<'_>) -> io::Result<()> {
        self.mounted(Subject::outboard(ask, "outboard", &[])?, true, &[]);
        self.client("client", 0, true, &[])?;
        self.mounted(Subject::plain(ask)?, true, &[]);
        self.mounted(Subject::fuse(ask, "fuse", &[])?, true, &[]);
        Ok(())
    }

    fn cached(&mut self, ask: &Ask<'_>, cache: u64) -> io::Result<()> {
        let size = format!("--cache-size={cache}");
        let hybrid = ["--cache=hybrid", &size];
        let bare = ["--cache=hybrid", &size, "--prefetch=none"];
        self.mounted(Subject::plain(ask)?, true, &[true, false]);
        self.mounted(Subject::fuse(ask, "fuse", &[])?, true, &[true]);
        self.mounted(Subject::outboard(ask, "none", &["--cache=none"])?, true, &[false]);
        let kernel = Subject::outboard(ask, "kernel", &["--cache=kernel"])?;
        self.mounted(kernel, true, &[true, false]);
        self.mounted(Subject::outboard(ask, "hybrid", &hybrid)?, true, &[true]);
        self.client("client", cache, true, &[true])?;
        let mut subject = Subject::outboard(ask, "hybrid-bare", &bare)?;
        // The same system, asked another question.
        subject.name = "hybrid";
        self.mounted(subject, false, &[false]);
        self.client("client", cache, false, &[false])
    }

    fn mounted(&mut self, subject: Subject, always: bool, read_ahead: &'static [bool]) {
        let reach = Reach::kernel(&subject.dir, subject.behind.as_deref(), "file");
        self.0.push(Contestant { reach, subject, always, read_ahead });
    }

    /// The user-space path to the volume of the contestant before, with a file of its own: two
    /// attachments that write one file take its cached pages from each other.
    fn client(
        &mut self,
        name: &'static str,
        cache: u64,
        always: bool,
        read_ahead: &'static [bool],
    ) -> io::Result<()> {
        let of = self.0.last().map(|before| &before.subject);
        let volume = of.and_then(|of| Some((of, of.data.as_deref()?)));
        let (of, data): (&Subject, &Path) =
            volume.ok_or_else(|| io::Error::other("there is no volume to attach to"))?;
        let subject = Subject::client(of, name);
        let reach = Reach::client(data, cache, "client-file")?;
        self.0.push(Contestant { reach, subject, always, read_ahead });
        Ok(())
    }

    /// Who takes part at a point.
    pub(super) fn of<'a>(&'a self, job: &Job) -> impl Iterator<Item = &'a Contestant> + use<'a> {
        let read_ahead = job.read_ahead;
        self.0.iter().filter(move |contestant| match read_ahead {
            None => contestant.always,
            Some(wanted) => contestant.read_ahead.contains(&wanted),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;

    fn figure(figure: Figure) -> FsFigure {
        let (dir, program) = ("".into(), "".into());
        let (time, read_delay, rounds) = (Duration::ZERO, Duration::ZERO, 1);
        let (threads, file_len) = (vec![1, 3, 256], 8 << 20);
        FsFigure { figure, dir, time, rounds, threads, file_len, read_delay, program }
    }

    /// No thread of any point leaves the file, and a sequential one visits its part in order, once
    /// a pass, and has forgotten it before.
    #[test]
    fn every_block_lies_in_the_span() {
        for (_, which) in Figure::NAMES {
            let jobs = jobs(&figure(which));
            assert!(jobs.len() >= 6);
            for job in jobs {
                for thread in 0..job.threads as u64 {
                    let mut blocks = job.blocks(thread);
                    let mut seen = HashSet::new();
                    for _ in 0..100 {
                        let block = blocks.next_block();
                        assert!(block.at + job.size as u64 <= job.span, "{job:?} {block:?}");
                        assert!(block.at.is_multiple_of(job.size as u64));
                        if let Some((at, len)) = block.forget {
                            assert!(job.sequential && at == block.at && at + len <= job.span);
                            seen.clear();
                        }
                        assert!(seen.insert(block.at) || job.read_ahead.is_none(), "{job:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn threads_part_a_sequential_file_among_themselves() {
        let job = Job { threads: 4, ..jobs(&figure(Figure::Table2))[0] };
        let first: Vec<u64> = (0..4).map(|thread| job.blocks(thread).next_block().at).collect();
        assert_eq!(first, [0, 2 << 20, 4 << 20, 6 << 20]);
    }
}
