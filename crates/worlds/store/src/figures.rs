//! What is known of a volume's store, as JSON; `status` shows it.

use outboard_kv::Kv;
use outboard_medium::Medium;
use serde_json::{Value, json};

use crate::engine::{StoreKv, StoreMedium};

/// How the store does. Everything is about the volume's own store but `bytes` and `capacity` of a
/// pool, which others may share.
pub fn figures(store: &StoreKv, blocks: &StoreMedium) -> Value {
    let usage = store.usage();
    let mut all = json!({
        "engine": store.engine(),
        "bytes": usage.used,
        "capacity": usage.capacity,
        "medium_bytes": blocks.len(),
    });
    let own = match store {
        StoreKv::Fjall(engine) => {
            let counts = engine.counts();
            json!({
                "pairs": counts.pairs,
                "journal": {"objects": counts.journals, "bytes": counts.journal_bytes},
            })
        }
        StoreKv::Redb(engine) => {
            let counts = engine.counts();
            json!({
                "pairs": engine.count_pairs().ok(),
                "journal": {"commits": counts.batches, "groups": counts.transactions},
                "in_flight": counts.waiting,
            })
        }
        #[cfg(feature = "rados")]
        StoreKv::Pool(kv) => crate::pooled::figures(kv),
    };
    if let (Value::Object(all), Value::Object(own)) = (&mut all, own) {
        all.extend(own);
    }
    all
}
