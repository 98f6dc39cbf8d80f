//! What a command tells on its output. Who reads that may have heard enough (`outboard status |
//! head`), and what holds a mount or a cluster up must not end for it: then nobody is told.

use std::fmt::Arguments;
use std::io::{self, Write};

/// Tells a line on the output.
macro_rules! say {
    () => { $crate::say::line(format_args!("")) };
    ($($arg:tt)*) => { $crate::say::line(format_args!($($arg)*)) };
}

pub(crate) use say;

pub(crate) fn line(line: Arguments<'_>) {
    let _nobody_reads = writeln!(io::stdout(), "{line}");
}
