//! An ensemble of ZooKeeper as the coordinator: the crate `zookeeper-client` behind the port.
//!
//! ```text
//! /PATH/NAME    an entry: its value; ephemeral if it goes with the session
//! ```
//!
//! The library keeps the session up by itself, and goes over to another server of the ensemble
//! where one dies. What is put in the place of an entry is made in the transaction that deletes
//! that one: whose an ephemeral one is does not change. A version is the number of the transaction
//! that changed the entry last: ZooKeeper's own begin anew with each entry.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboard_base::{Errno, Result};
use outboard_cluster::coordinator::{Coordinator, Entry};
use zookeeper_client::{Acls, Client, CreateMode, Error, SessionState, Stat};

/// How long a session goes on when nothing is heard of its owner. The servers may shorten it.
const TERM: Duration = Duration::from_secs(6);

/// The ensemble, with this part's session.
pub struct ZooKeeper {
    servers: String,
    root: String,
    client: Mutex<Option<Client>>,
}

fn errno(error: &Error) -> Errno {
    match error {
        Error::NoNode => Errno::ENOENT,
        Error::NodeExists => Errno::EEXIST,
        Error::BadVersion => Errno::ESTALE,
        Error::SessionExpired | Error::ClientClosed => Errno::ENOTCONN,
        _ => Errno::EIO,
    }
}

fn version_of(stat: &Stat) -> u64 {
    u64::try_from(stat.mzxid).unwrap_or(0)
}

impl ZooKeeper {
    pub(crate) fn new(servers: &str, path: &str) -> ZooKeeper {
        let (servers, root) = (servers.to_owned(), format!("/{path}"));
        ZooKeeper { servers, root, client: Mutex::new(None) }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> Result<Client> {
        self.slot().clone().ok_or(Errno::ENOTCONN)
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }

    async fn connect(&self) -> Result<()> {
        let connector = Client::connector().with_session_timeout(TERM).with_fail_eagerly();
        let connected = connector.connect(&self.servers).await;
        let client = connected.map_err(|error| {
            tracing::debug!(%error, "no server of the ensemble answers");
            Errno::EIO
        })?;
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.mkdir(&self.root, &options).await.map_err(|error| errno(&error))?;
        *self.slot() = Some(client);
        Ok(())
    }

    /// The entry at a path as ZooKeeper has it, if its version is this.
    async fn found(client: &Client, path: &str, version: u64) -> Result<Stat> {
        let stat = client.check_stat(path).await.map_err(|error| errno(&error))?;
        let stat = stat.ok_or(Errno::ENOENT)?;
        if version_of(&stat) == version { Ok(stat) } else { Err(Errno::ESTALE) }
    }
}

impl Coordinator for ZooKeeper {
    async fn beat(&self) -> Result<()> {
        let state = self.slot().as_ref().map(Client::state);
        match state {
            None => self.connect().await,
            Some(SessionState::SyncConnected) => Ok(()),
            Some(SessionState::Disconnected | SessionState::ConnectedReadOnly) => Err(Errno::EIO),
            Some(_) => {
                *self.slot() = None;
                Err(Errno::ENOTCONN)
            }
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
        let client = self.client()?;
        // What another client was answered by another server is seen here, too.
        client.sync(&self.root).await.map_err(|error| errno(&error))?;
        let names = client.list_children(&self.root).await.map_err(|error| errno(&error))?;
        let mut names: Vec<String> =
            names.into_iter().filter(|name| name.starts_with(prefix)).collect();
        names.sort();
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            let (value, stat) = match client.get_data(&self.path(&name)).await {
                Ok(found) => found,
                Err(Error::NoNode) => continue,
                Err(error) => return Err(errno(&error)),
            };
            let value = String::from_utf8_lossy(&value).into_owned();
            let (version, passes) = (version_of(&stat), stat.ephemeral_owner != 0);
            all.push(Entry { name, value, version, passes });
        }
        Ok(all)
    }

    async fn put(&self, name: &str, value: &str, version: Option<u64>, stays: bool) -> Result<()> {
        let (client, path) = (self.client()?, self.path(name));
        let mode = if stays { CreateMode::Persistent } else { CreateMode::Ephemeral };
        let options = mode.with_acls(Acls::anyone_all());
        let Some(version) = version else {
            let made = client.create(&path, value.as_bytes(), &options).await;
            return made.map(drop).map_err(|error| errno(&error));
        };
        let stat = ZooKeeper::found(&client, &path, version).await?;
        let mut both = client.new_multi_writer();
        let added = both.add_delete(&path, Some(stat.version));
        let added = added.and_then(|()| both.add_create(&path, value.as_bytes(), &options));
        added.map_err(|error| errno(&error))?;
        both.commit().await.map(drop).map_err(|error| errno(&error.into()))
    }

    async fn remove(&self, name: &str, version: u64) -> Result<()> {
        let (client, path) = (self.client()?, self.path(name));
        let stat = ZooKeeper::found(&client, &path, version).await?;
        client.delete(&path, Some(stat.version)).await.map_err(|error| errno(&error))
    }
}
