//! What of packet sockets and TAP devices takes the kernel's own structures.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::netdevice;

/// Bytes of the kernel's queue of a packet socket.
const QUEUE: libc::c_int = 8 << 20;

/// Every frame that comes to a device goes to the socket, too, and to nobody's surprise: those that
/// leave through it do not.
pub(in crate::tcp::stack) fn packet_socket(name: &str) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is passed; the number that comes back is checked before it is owned.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was opened right here and nobody else knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let index = netdevice::name_to_index(&fd, name)?;
    for option in [libc::PACKET_VNET_HDR, libc::PACKET_AUXDATA, libc::PACKET_IGNORE_OUTGOING] {
        set(&fd, libc::SOL_PACKET, option, &1)?;
    }
    // More than the system's limit for who may; else what the limit allows.
    if set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &QUEUE).is_err() {
        set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &QUEUE)?;
    }
    attach(fd.as_fd(), index)?;
    Ok(fd)
}

/// Has a packet socket hear everything of a device, and nothing else.
fn attach(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let index = libc::c_int::try_from(index).map_err(io::Error::other)?;
    let all = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::c_ushort::try_from(libc::PACKET_MR_PROMISC).map_err(io::Error::other)?,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(&fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &all)?;
    // SAFETY: the structure is plain numbers, for which zeros are values.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::c_ushort::try_from(libc::AF_PACKET).map_err(io::Error::other)?;
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL).map_err(io::Error::other)?.to_be();
    address.sll_ifindex = index;
    let len = libc::socklen_t::try_from(size_of_val(&address)).map_err(io::Error::other)?;
    // SAFETY: the address lives through the call, and `len` is its size.
    let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Has a packet socket hear the device of this name, if that is another than the one it had.
/// Whether there is one that is switched on.
pub(in crate::tcp::stack) fn find_again(fd: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    let index = netdevice::name_to_index(fd, name)?;
    if libc::c_int::try_from(index).ok() != Some(bound(fd)?) {
        attach(fd, index)?;
    }
    let mut request = request(name)?;
    control(fd, libc::SIOCGIFFLAGS, &mut request)?;
    let up = libc::c_short::try_from(libc::IFF_UP).map_err(io::Error::other)?;
    // SAFETY: the request that succeeded wrote this field.
    Ok(unsafe { request.ifr_ifru.ifru_flags } & up != 0)
}

/// The number of the device that a packet socket hears; -1 for one that was taken away.
fn bound(fd: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    // SAFETY: the structure is plain numbers, for which zeros are values.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of_val(&address)).map_err(io::Error::other)?;
    let place: *mut libc::sockaddr_ll = &raw mut address;
    // SAFETY: the address lives through the call, and `len` is the room there is.
    let named = unsafe { libc::getsockname(fd.as_raw_fd(), place.cast(), &raw mut len) };
    if named < 0 { Err(io::Error::last_os_error()) } else { Ok(address.sll_ifindex) }
}

fn set<T>(fd: &impl AsRawFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    let value: *const T = value;
    // SAFETY: `value` lives through the call, and `len` is its size.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value.cast(), len) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A request about a device, by its name.
fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: the structure is plain numbers, for which zeros are values.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays zero.
    let places = request.ifr_name.len() - 1;
    if name.is_empty() || name.len() > places || name.contains(['/', '\0']) {
        let text = format!("`{name}` is no name of a network device");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = libc::c_char::from_ne_bytes([byte]);
    }
    Ok(request)
}

fn control(fd: BorrowedFd<'_>, what: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: every request made here takes one `ifreq`, which lives through the call.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), what, request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Bytes of the largest packet that a device sends.
pub(in crate::tcp::stack) fn mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<usize> {
    let mut request = request(name)?;
    control(socket, libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: the request that succeeded wrote this field.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(io::Error::other)
}

/// Switches a device on.
pub(in crate::tcp::stack) fn switch_on(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = request(name)?;
    control(socket, libc::SIOCGIFFLAGS, &mut request)?;
    let up = libc::c_short::try_from(libc::IFF_UP).map_err(io::Error::other)?;
    // SAFETY: the request that succeeded wrote this field.
    unsafe { request.ifr_ifru.ifru_flags |= up };
    control(socket, libc::SIOCSIFFLAGS, &mut request)
}

/// Makes a new TAP device; it goes with the descriptor.
pub(in crate::tcp::stack) fn make_tap(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = request(name)?;
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL;
    // The flags are sixteen bits, of which the last is set by one of these.
    let [low, high, ..] = flags.to_le_bytes();
    request.ifr_ifru.ifru_flags = libc::c_short::from_le_bytes([low, high]);
    control(fd, libc::TUNSETIFF, &mut request)
}

/// The tag of a virtual network: protocol, and what it says.
pub(in crate::tcp::stack) type Tag = (u16, u16);

/// Room for one control message with [`libc::tpacket_auxdata`], aligned as the kernel writes it.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Receives one frame of a packet socket with its header, and the tag that the kernel took from it.
pub(in crate::tcp::stack) fn receive(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
) -> io::Result<(usize, Option<Tag>)> {
    let mut control = Control([0; 64]);
    let mut vector = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: the structure is plain numbers and pointers, for which zeros are values.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>();
    // SAFETY: vector and control room live through the call, with the lengths stated.
    let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, 0) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        // Longer than any there is: as one that the kernel could not describe.
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut tag = None;
    // SAFETY: the kernel wrote `msg_controllen` bytes of whole control messages.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !at.is_null() {
        // SAFETY: `at` is a header within the control room, as the macros made it.
        let header = unsafe { &*at };
        if header.cmsg_level == libc::SOL_PACKET && header.cmsg_type == libc::PACKET_AUXDATA {
            let mut aux = MaybeUninit::<libc::tpacket_auxdata>::uninit();
            // SAFETY: a control message of this type holds one such structure, which is copied out
            // whole; it is plain numbers.
            let aux = unsafe {
                let from = libc::CMSG_DATA(at).cast::<u8>();
                let to = aux.as_mut_ptr().cast::<u8>();
                from.copy_to_nonoverlapping(to, size_of::<libc::tpacket_auxdata>());
                aux.assume_init()
            };
            if aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
                let known = aux.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
                tag = Some((if known { aux.tp_vlan_tpid } else { 0x8100 }, aux.tp_vlan_tci));
            }
        }
        // SAFETY: as for the first.
        at = unsafe { libc::CMSG_NXTHDR(&raw const message, at) };
    }
    Ok((got, tag))
}
