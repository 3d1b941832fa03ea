//! Messages as they are on the wire, read by rules of the test's own.

use std::collections::BTreeMap;
use tokio::{io::AsyncReadExt, net::TcpStream};

/// A message, or as much of it as came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The first line, split at its spaces.
    pub start: Vec<String>,
    /// By name in lower case, each with its values in their order.
    pub headers: BTreeMap<String, Vec<String>>,
    pub body: Vec<u8>,
    pub trailers: BTreeMap<String, Vec<String>>,
    /// It has come to its end.
    pub whole: bool,
}

/// Which rules hold for the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Request,
    Response,
    /// To a HEAD.
    Bodiless,
}

struct Reader<'a> {
    stream: &'a mut TcpStream,
    buffer: Vec<u8>,
}

impl Reader<'_> {
    async fn fill(&mut self) -> bool {
        self.stream.read_buf(&mut self.buffer).await.unwrap_or(0) > 0
    }

    /// A line without its end.
    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|it| it == b"\r\n") {
                let line = self.buffer.drain(..at + 2).collect::<Vec<_>>();
                return Some(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    async fn exactly(&mut self, length: usize, into: &mut Vec<u8>) -> bool {
        while self.buffer.len() < length {
            if !self.fill().await {
                into.append(&mut self.buffer);
                return false;
            }
        }
        into.extend(self.buffer.drain(..length));
        true
    }

    async fn fields(&mut self) -> Option<BTreeMap<String, Vec<String>>> {
        let mut fields = BTreeMap::<_, Vec<_>>::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Some(fields);
            }
            let (name, value) = line.split_once(':')?;
            let values = fields.entry(name.to_lowercase()).or_default();
            values.push(value.trim().to_owned());
        }
    }
}

/// Reads a message; `None` if no head came.
pub async fn read(stream: &mut TcpStream, role: Role) -> Option<Message> {
    let mut reader = Reader {
        stream,
        buffer: Vec::new(),
    };
    loop {
        let start = reader.line().await?;
        let start: Vec<_> = start.split(' ').map(str::to_owned).collect();
        let headers = reader.fields().await?;
        let mut message = Message {
            start,
            headers,
            ..Message::default()
        };
        let status = message.start.get(1).cloned().unwrap_or_default();
        if role != Role::Request && status.starts_with('1') && status != "101" {
            continue;
        }
        let bodiless = role == Role::Bodiless
            || (role == Role::Response && matches!(&*status, "204" | "304" | "101"));
        message.whole = if bodiless {
            true
        } else {
            body(&mut reader, &mut message, role).await.unwrap_or(false)
        };
        return Some(message);
    }
}

async fn body(reader: &mut Reader<'_>, message: &mut Message, role: Role) -> Option<bool> {
    if message.headers.contains_key("transfer-encoding") {
        loop {
            let line = reader.line().await?;
            let size = line.split(';').next()?.trim();
            let size = usize::from_str_radix(size, 16).ok()?;
            if size == 0 {
                message.trailers = reader.fields().await?;
                return Some(true);
            }
            if !reader.exactly(size, &mut message.body).await {
                return Some(false);
            }
            reader.line().await?;
        }
    }
    match message.headers.get("content-length") {
        Some(length) => {
            let length = length[0].parse().ok()?;
            Some(reader.exactly(length, &mut message.body).await)
        }
        None if role == Role::Request => Some(true),
        None => {
            // To the end, which a reset is not.
            loop {
                match reader.stream.read_buf(&mut reader.buffer).await {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(_) => return Some(false),
                }
            }
            message.body.append(&mut reader.buffer);
            Some(true)
        }
    }
}
