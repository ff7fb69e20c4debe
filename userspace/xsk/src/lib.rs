//! AF_XDP sockets.
