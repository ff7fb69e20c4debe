//! Spans of operations, as a collector receives them. See `lab.rs` for the topology.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use sumac_client::OpOptions;

use crate::kinds::tensor;
use crate::lab::Lab;
use crate::wait::{LIMIT, eventually};

/// A collector on a free port: answers requests, and passes their spans on.
fn collector() -> (SocketAddr, Receiver<Span>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (to, spans) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let to = to.clone();
            thread::spawn(move || serve(stream.unwrap(), &to));
        }
    });
    (address, spans)
}

fn serve(stream: TcpStream, to: &Sender<Span>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut header = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_lowercase();
            if line.is_empty() {
                break;
            }
            header.push(line);
        }
        assert_eq!(header[0], "post /v1/traces http/1.1");
        assert!(header.contains(&"content-type: application/x-protobuf".to_owned()), "{header:?}");
        let length = header.iter().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.unwrap().parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
        for resource in request.resource_spans {
            let about = attributes(&resource.resource.unwrap().attributes);
            assert_eq!(about["service.name"], "sumac-daemon");
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            // The test may have ended.
            spans.for_each(|span| drop(to.send(span)));
        }
    }
}

fn attributes(all: &[opentelemetry_proto::tonic::common::v1::KeyValue]) -> BTreeMap<String, String> {
    let value = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    let pair = |it: &opentelemetry_proto::tonic::common::v1::KeyValue| {
        let any = it.value.as_ref().and_then(|any| any.value.as_ref());
        (it.key.clone(), any.map_or(String::new(), value))
    };
    all.iter().map(pair).collect()
}

/// An operation's span, and those of its steps in order of time.
fn operation(spans: &[Span], rank: u16, number: u32) -> (Span, Vec<Span>) {
    let is_it = |span: &&Span| {
        let about = attributes(&span.attributes);
        about.get("sumac.rank") == Some(&rank.to_string())
            && about.get("sumac.operation") == Some(&number.to_string())
    };
    let whole = spans.iter().find(is_it).unwrap().clone();
    let mut steps: Vec<Span> =
        spans.iter().filter(|span| span.parent_span_id == whole.span_id).cloned().collect();
    // An empty step begins and ends with its neighbour.
    steps.sort_by_key(|span| (span.start_time_unix_nano, span.end_time_unix_nano));
    (whole, steps)
}

const OPERATIONS: u32 = 3;
const STEPS: [&str; 4] = ["queued", "first packets", "network", "result"];

#[test]
fn each_operation_has_a_span_for_each_step_in_one_trace_of_all_ranks() {
    let (address, received) = collector();
    let lab = Lab::with(2, &format!("tracing = {{ otlp = \"http://{address}\" }}"));
    lab.train(
        "traced",
        |o| o,
        |client, job, _| {
            for number in 0..OPERATIONS {
                let input = tensor::<f32>(client, 3520, |i| i as f32);
                let name = format!("layer{number}");
                let mut pending = job.allreduce_with(input, OpOptions::named(&name)).unwrap();
                assert!(pending.wait_timeout(LIMIT).unwrap());
                assert_eq!(pending.timing(), None, "the client did not ask");
                pending.wait().unwrap();
            }
        },
    );
    let count = 2 * OPERATIONS as usize * (1 + STEPS.len());
    let spans: Vec<Span> = (0..count).map(|_| received.recv_timeout(LIMIT).unwrap()).collect();
    for number in 0..OPERATIONS {
        let [first, second] = [0, 1].map(|rank| operation(&spans, rank, number));
        assert_eq!(first.0.trace_id, second.0.trace_id, "one trace");
        for (whole, steps) in [first, second] {
            let about = attributes(&whole.attributes);
            assert_eq!((whole.name.as_str(), about["sumac.job"].as_str()), ("allreduce", "traced"));
            assert_eq!(about["sumac.operation.name"], format!("layer{number}"));
            assert_eq!((about["sumac.world"].as_str(), about["sumac.elements"].as_str()), ("2", "3520"));
            assert_eq!(steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>(), STEPS);
            let ends = steps.iter().map(|step| (step.start_time_unix_nano, step.end_time_unix_nano));
            let mut from = whole.start_time_unix_nano;
            for (start, end) in ends {
                assert!(start == from && end >= start, "{start} to {end}, after {from}");
                from = end;
            }
            assert_eq!(from, whole.end_time_unix_nano, "the steps are the whole");
            assert!(steps.iter().all(|step| step.trace_id == whole.trace_id));
        }
    }
}

#[test]
fn an_absent_collector_holds_nothing_up_and_is_counted() {
    let metrics = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let lab = Lab::with(1, &format!("metrics = \"{metrics}\"\ntracing = {{ otlp = \"http://{nobody}\" }}"));
    lab.train(
        "untraced",
        |o| o,
        move |client, job, _| {
            let input = tensor::<f32>(client, 3520, |i| i as f32);
            job.allreduce(input).unwrap().wait().unwrap();
            let refused = "sumac_traced_operations_total{outcome=\"refused\"}";
            let is_counted = || crate::metrics::scrape(metrics)[refused] >= 1.0;
            eventually("the failure's count", || is_counted().then_some(()));
        },
    );
}
