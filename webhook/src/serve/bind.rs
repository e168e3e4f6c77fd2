//! Opens listening sockets for IPv4 and IPv6.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Limits the connections that the kernel queues until they are accepted.
const ACCEPT_QUEUE_LIMIT: i32 = 1024;
/// Limits the kernel's buffer of each connection in each direction, in bytes. The buffers count against the pod's memory limit,
/// and by default they grow to megabytes for a client that does not read.
const SOCKET_BUFFER_LIMIT: usize = 64 << 10;

/// Opens a listening socket that does not block. `[::]` also accepts IPv4; on a host without IPv6 it becomes `0.0.0.0`.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    bind_or_fall_back(address, open)
}

fn bind_or_fall_back<S>(address: SocketAddr, open: impl Fn(SocketAddr) -> io::Result<S>) -> io::Result<S> {
    let error = match open(address) {
        Ok(socket) => return Ok(socket),
        Err(error) => error,
    };
    let may_lack_ipv6 = !matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied);
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && may_lack_ipv6 {
        return open((Ipv4Addr::UNSPECIFIED, address.port()).into()).map_err(|_| error);
    }
    Err(error)
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    // Accepted connections inherit both.
    socket.set_recv_buffer_size(SOCKET_BUFFER_LIMIT)?;
    socket.set_send_buffer_size(SOCKET_BUFFER_LIMIT)?;
    socket.bind(&address.into())?;
    socket.listen(ACCEPT_QUEUE_LIMIT)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn host_without_ipv6_listens_on_ipv4() {
        let without_ipv6 = |address: SocketAddr| {
            // EAFNOSUPPORT
            if address.is_ipv6() { Err(io::Error::from_raw_os_error(97)) } else { Ok(address) }
        };
        let address = bind_or_fall_back("[::]:8443".parse().unwrap(), without_ipv6).unwrap();
        assert_eq!(address, "0.0.0.0:8443".parse().unwrap());
        assert!(bind_or_fall_back("[::1]:8443".parse().unwrap(), without_ipv6).is_err(), "the address was chosen");
    }

    #[test]
    fn port_in_use_is_an_error_without_fallback() {
        let in_use = |address: SocketAddr| {
            if address.is_ipv6() { Err(io::Error::from(ErrorKind::AddrInUse)) } else { Ok(()) }
        };
        let error = bind_or_fall_back("[::]:8443".parse().unwrap(), in_use).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }
}
