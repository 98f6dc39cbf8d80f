//! The file system check.
