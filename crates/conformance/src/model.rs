//! A file system simple enough to be right, and random work to compare volumes with it.
