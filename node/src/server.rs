//! The socket that the plugin connects to.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use cni::protocol::{Request, Response};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

use crate::sandbox::Supervisor;

const REQUEST_LIMIT: u64 = 64 * 1024;
/// Pause after a connection could not be accepted, as for want of file descriptors.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Serves the socket, to which only root can connect. Fails if it cannot be created.
pub async fn serve(socket: &Path, supervisor: &Supervisor) -> io::Result<Infallible> {
    // An earlier agent's socket may still be there.
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket)?;
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600))?;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a plugin's connection");
                sleep(RETRY_DELAY).await;
                continue;
            }
        };
        let supervisor = supervisor.clone();
        tokio::spawn(async move {
            if let Err(error) = respond(stream, &supervisor).await {
                tracing::warn!(%error, "a plugin's connection");
            }
        });
    }
}

async fn respond(stream: UnixStream, supervisor: &Supervisor) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read.take(REQUEST_LIMIT)).read_line(&mut line).await?;
    let response = match serde_json::from_str::<Request>(&line) {
        Ok(request) => supervisor.request(request).await,
        Err(error) => Response { error: Some(format!("the request: {error}")) },
    };
    let mut text = serde_json::to_string(&response)?;
    text.push('\n');
    write.write_all(text.as_bytes()).await
}
