//! The socket of a connection, which the pool can look at while hyper owns
//! the connection.

use super::{MalformedAnswer, frames::Frames};
use socket2::SockRef;
use std::{
    io,
    mem::MaybeUninit,
    net::Shutdown,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

/// How many informational responses a worker may send before an answer.
/// hyper skips them without an end.
const MAX_INFORMATIONAL: u32 = 100;
/// How many heads may come on a connection with HTTP/2 without one of them
/// being an answer's: as many requests may be on it.
const MAX_HEADS: u32 = 10_000;

/// What is known of a connection from outside of it.
#[derive(Debug)]
pub(super) struct Watch {
    socket: Arc<TcpStream>,
    received: AtomicU64,
    informational: AtomicU32,
    too_many: AtomicBool,
}

/// What an idle connection looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    Open,
    /// There is something to read: a farewell, as a rule.
    Readable,
    Closed,
}

impl Watch {
    /// How many bytes the worker has sent.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// An informational response has come (HTTP/1.1).
    pub(super) fn informational(&self) {
        self.count(1, MAX_INFORMATIONAL);
    }

    fn count(&self, more: u32, most: u32) {
        if self.informational.fetch_add(more, Relaxed) + more > most {
            self.too_many.store(true, Relaxed);
        }
    }

    /// Whether the connection was given up for its informational responses.
    pub(super) fn is_flooded(&self) -> bool {
        self.too_many.load(Relaxed)
    }

    /// An answer has come, and counts begin anew.
    pub(super) fn answered(&self) {
        self.informational.store(0, Relaxed);
    }

    /// Asks the system, since the task of the connection may not have been
    /// told yet what has become of it.
    pub(super) fn look(&self) -> Idle {
        let mut byte = [MaybeUninit::uninit()];
        match SockRef::from(&*self.socket).peek(&mut byte) {
            Ok(0) => Idle::Closed,
            Ok(_) => Idle::Readable,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Idle::Open,
            Err(_) => Idle::Closed,
        }
    }
}

/// A TCP stream that several can look at and one uses.
#[derive(Debug)]
pub(super) struct Socket {
    stream: Arc<TcpStream>,
    cannot_write: bool,
}

impl Socket {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream: Arc::new(stream),
            cannot_write: false,
        }
    }

    /// A worker may answer and close before it has read a whole request, and
    /// the answer is still there to be read when writing fails. So a failure
    /// is kept from hyper, which would stop reading: how it ends is seen there.
    fn written(&mut self, result: io::Result<usize>, length: usize) -> io::Result<usize> {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
        match result {
            Err(error)
                if matches!(
                    error.kind(),
                    BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected
                ) =>
            {
                self.cannot_write = true;
                Ok(length)
            }
            other => other,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read_buf(buffer) {
                // The end of an answer that nothing else ends cannot be told
                // from a reset that the failed write has taken with it.
                Ok(0) if self.cannot_write && buffer.remaining() > 0 => {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        while !self.cannot_write {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(self.written(result, bytes.len())),
            }
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = slices.iter().map(|slice| slice.len()).sum();
        while !self.cannot_write {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.stream.try_write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(self.written(result, length)),
            }
        }
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.stream).shutdown(Shutdown::Write))
    }
}

/// A connection's bytes, encrypted or not, which are counted.
#[derive(Debug)]
pub(super) struct Io {
    stream: Stream,
    watch: Arc<Watch>,
    /// With HTTP/2, where hyper does not tell of informational responses.
    frames: Option<Frames>,
}

#[derive(Debug)]
enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Io {
    pub(super) fn plain(socket: Socket) -> Self {
        let watch = Self::watch_of(&socket);
        Self {
            stream: Stream::Plain(socket),
            watch,
            frames: None,
        }
    }

    pub(super) fn tls(stream: TlsStream<Socket>) -> Self {
        let watch = Self::watch_of(stream.get_ref().0);
        Self {
            stream: Stream::Tls(Box::new(stream)),
            watch,
            frames: None,
        }
    }

    /// Counts the heads of HTTP/2.
    pub(super) fn count_heads(mut self) -> Self {
        self.frames = Some(Frames::default());
        self
    }

    fn watch_of(socket: &Socket) -> Arc<Watch> {
        Arc::new(Watch {
            socket: socket.stream.clone(),
            received: AtomicU64::new(0),
            informational: AtomicU32::new(0),
            too_many: AtomicBool::new(false),
        })
    }

    pub(super) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    fn stream(&mut self) -> Pin<&mut dyn Duplex> {
        Pin::new(match &mut self.stream {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => &mut **stream,
        })
    }
}

trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.watch.is_flooded() {
            let error = io::Error::other(MalformedAnswer::TooManyInformational);
            return Poll::Ready(Err(error));
        }
        let before = buffer.filled().len();
        ready!(self.stream().poll_read(cx, buffer))?;
        let more = &buffer.filled()[before..];
        self.watch.received.fetch_add(more.len() as u64, Relaxed);
        if let Some(frames) = &mut self.frames {
            let heads = frames.heads(more);
            self.watch.count(heads, MAX_HEADS);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}
