//! Labs of network namespaces.
