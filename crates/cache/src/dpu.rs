//! The control plane: everything the DPU side does to a cache.
