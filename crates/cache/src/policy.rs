//! What to keep, fetch and flush: catalogues of algorithms.
