//! Passes the calls of a rack's workers on to the root.

use std::sync::Arc;

use prost::Message;
use tonic::{Request, Response, Status as Denial};

use super::{Link, Uplink};
use crate::{
    rpc::{self, control_server::Control},
    seal::Purpose,
    server::service::caller,
};

/// The service of a rack.
pub struct Relay {
    pub(super) link: Arc<Link>,
}

impl Relay {
    fn uplink(&self) -> Result<Uplink, Denial> {
        self.link
            .get()
            .ok_or_else(|| Denial::unavailable("the rack's aggregator has no connection to its root"))
    }

    async fn pass_on(
        &self,
        call: rpc::Call,
        request: Request<rpc::Sealed>,
    ) -> Result<Response<rpc::Sealed>, Denial> {
        let (caller, proof) = caller(&request)?;
        let mut uplink = self.uplink()?;
        let body = rpc::RelayedCall {
            session: uplink.id,
            peer_ip: caller.peer.to_bits(),
            local_ip: caller.local.to_bits(),
            call: call.into(),
            inner: Some(request.into_inner()),
        };
        let sealed = uplink.key.seal(Purpose::Relay, body.encode_to_vec());
        // The root answers only what is authentic.
        let reply = proof.from(uplink.relay.relay(sealed).await)?;
        Ok(Response::new(reply.into_inner()))
    }
}

/// What only a root can do.
fn no_root() -> Denial {
    Denial::failed_precondition("this aggregator is a rack's itself; let racks enter at the root")
}

#[tonic::async_trait]
impl Control for Relay {
    async fn challenge(
        &self,
        request: Request<rpc::ChallengeRequest>,
    ) -> Result<Response<rpc::ChallengeReply>, Denial> {
        let reply = self.uplink()?.relay.challenge(request.into_inner()).await?;
        Ok(Response::new(reply.into_inner()))
    }

    async fn join(&self, request: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        self.pass_on(rpc::Call::Join, request).await
    }

    async fn heartbeat(&self, request: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        self.pass_on(rpc::Call::Heartbeat, request).await
    }

    async fn post(&self, request: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        self.pass_on(rpc::Call::Post, request).await
    }

    async fn leave(&self, request: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        self.pass_on(rpc::Call::Leave, request).await
    }

    async fn enter_rack(&self, _: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        Err(no_root())
    }

    async fn serve_rack(&self, _: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        Err(no_root())
    }

    async fn relay(&self, _: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        Err(no_root())
    }
}
