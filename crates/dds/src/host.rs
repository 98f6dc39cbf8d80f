//! The host's side: the file library an application links (section 4.2).
