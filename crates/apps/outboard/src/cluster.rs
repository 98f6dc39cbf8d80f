//! Clusters of shared volumes: their description, their parts as processes, and who mounts them.

pub(crate) mod description;
pub(crate) mod location;
pub(crate) mod membership;
pub(crate) mod netns;
pub(crate) mod part;
pub(crate) mod process;
mod server;
