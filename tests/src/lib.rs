//! The rig: a volume started as a user starts it, with `outboard run`, for programs to live on.
