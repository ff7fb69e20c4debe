//! The connections to the endpoint. A further one beyond their limit ends an earlier one, so that clients
//! that do not read, or send no request, keep nobody out.

use std::net::IpAddr;

use tokio::task::AbortHandle;

/// Connections at one time.
const MAX_CONNECTIONS: usize = 16;

/// The open connections, the oldest first, with the tasks that serve them.
#[derive(Debug, Default)]
pub(crate) struct Connections(Vec<(IpAddr, AbortHandle)>);

impl Connections {
    /// Adds a connection. At the limit it ends the oldest one of the client that has the most.
    pub(crate) fn add(&mut self, client: IpAddr, task: AbortHandle) {
        self.0.retain(|(_, task)| !task.is_finished());
        self.0.push((client, task));
        if self.0.len() > MAX_CONNECTIONS {
            let count = |client: IpAddr| self.0.iter().filter(|(other, _)| *other == client).count();
            let most = self.0.iter().map(|(client, _)| count(*client)).max();
            let ended =
                self.0.iter().position(|(client, _)| Some(count(*client)) == most).unwrap_or_default();
            self.0.remove(ended).1.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn client(number: u8) -> IpAddr {
        Ipv4Addr::new(127, 0, 0, number).into()
    }

    #[tokio::test]
    async fn beyond_the_limit_the_client_with_the_most_connections_loses_its_oldest() {
        let mut connections = Connections::default();
        let tasks: Vec<_> = [1, 2, 3].into_iter().chain([2; MAX_CONNECTIONS]).collect();
        let tasks: Vec<_> = tasks
            .into_iter()
            .map(|number| {
                let task = tokio::spawn(std::future::pending::<()>());
                connections.add(client(number), task.abort_handle());
                (number, task)
            })
            .collect();
        assert_eq!(connections.0.len(), MAX_CONNECTIONS);
        tokio::task::yield_now().await;
        let ended =
            |number| tasks.iter().filter(move |(of, task)| *of == number && task.is_finished()).count();
        assert_eq!((ended(1), ended(2), ended(3)), (0, 3, 0));
        assert!(tasks[1].1.is_finished() && !tasks[18].1.is_finished(), "the oldest ones end");
    }
}
