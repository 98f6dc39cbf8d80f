//! Where a volume in a pool is: `rados://POOL?conf=PATH&namespace=NAME&user=NAME&timeout=SECONDS`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How a location starts.
pub const SCHEME: &str = "rados://";

/// A pool, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The pool's name.
    pub pool: String,
    /// The cluster's configuration file.
    pub conf: String,
    /// The namespace within the pool: volumes in different ones do not see each other.
    pub namespace: String,
    /// The user, as `client.admin`.
    pub user: String,
    /// How long an operation may take before it fails.
    pub timeout: Duration,
}

/// Why a text is no location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoLocation(String);

impl fmt::Display for NoLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usage = "write rados://POOL?conf=PATH, and where wanted &namespace=NAME, \
                     &user=client.NAME, &timeout=SECONDS";
        write!(f, "{}; {usage}", self.0)
    }
}

impl std::error::Error for NoLocation {}

impl FromStr for Location {
    type Err = NoLocation;

    fn from_str(text: &str) -> Result<Location, NoLocation> {
        let wrong = |what: String| Err(NoLocation(format!("{text}: {what}")));
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return wrong(format!("does not start with {SCHEME}"));
        };
        let (pool, query) = rest.split_once('?').unwrap_or((rest, ""));
        if pool.is_empty() || pool.contains(['/', '\0']) {
            return wrong("names no pool".into());
        }
        let mut location = Location {
            pool: pool.into(),
            conf: "/etc/ceph/ceph.conf".into(),
            namespace: "outboard".into(),
            user: "client.admin".into(),
            timeout: Duration::from_secs(30),
        };
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            if value.is_empty() || value.contains('\0') {
                return wrong(format!("`{name}` has no value"));
            }
            match name {
                "conf" => location.conf = value.into(),
                "namespace" => location.namespace = value.into(),
                "user" if value.contains('.') => location.user = value.into(),
                "user" => location.user = format!("client.{value}"),
                "timeout" => match value.parse() {
                    Ok(seconds @ 1..=3600) => location.timeout = Duration::from_secs(seconds),
                    _ => return wrong("`timeout` is not 1 to 3600 seconds".into()),
                },
                _ => return wrong(format!("`{name}` is not known")),
            }
        }
        Ok(location)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Location { pool, conf, namespace, user, timeout } = self;
        let seconds = timeout.as_secs();
        write!(f, "{SCHEME}{pool}?conf={conf}&namespace={namespace}&user={user}&timeout={seconds}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_read_and_written() {
        let text = "rados://vols?conf=/tmp/c/ceph.conf&namespace=a&user=me&timeout=5";
        let location: Location = text.parse().unwrap();
        assert_eq!(location.pool, "vols");
        assert_eq!(location.user, "client.me");
        assert_eq!(location.timeout, Duration::from_secs(5));
        assert_eq!(location.to_string().parse(), Ok(location));
        let short: Location = "rados://vols".parse().unwrap();
        assert_eq!(short.namespace, "outboard");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, word) in [
            ("ceph://a", "does not start"),
            ("rados://?conf=/x", "no pool"),
            ("rados://a?conf", "no value"),
            ("rados://a?timeout=0", "timeout"),
            ("rados://a?colour=red", "colour"),
        ] {
            let message = text.parse::<Location>().unwrap_err().to_string();
            assert!(message.contains(word) && message.contains("rados://POOL"), "{message}");
        }
    }
}
