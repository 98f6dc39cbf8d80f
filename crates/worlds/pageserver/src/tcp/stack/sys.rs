//! System calls of packet sockets and TAP devices, behind safe functions.

mod packet;

pub(super) use packet::{Tag, find_again, make_tap, mtu, packet_socket, receive, switch_on};
