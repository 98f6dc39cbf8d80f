//! The data plane: everything the host side does to a cache.
