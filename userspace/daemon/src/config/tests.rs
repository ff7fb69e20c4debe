//! Tests of the configuration's parser.

use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("/etc/sumac/daemon.toml"))
}

#[test]
fn an_empty_file_is_the_defaults() {
    let config = parse("").unwrap();
    assert_eq!(config.mode_bits(), Some(0o660));
    assert_eq!(config.backend, BackendChoice::Auto);
    assert_eq!(config.join_timeout(), Duration::from_secs(60));
    assert!(config.default_credential().unwrap().is_none());
}

#[test]
fn every_key_of_the_documentation_is_known() {
    let text = r#"
        socket = "/tmp/s.sock"
        socket_mode = "0600"
        socket_group = "sumac"
        allow_uids = [1000, 1001]
        backend = "udp"
        interface = "eth1"
        mode = "copy"
        steer = "ntuple"
        queues = [0, 1]
        pin_root = "/sys/fs/bpf/sumac"
        base_port = 48700
        shards = 1
        address = "10.77.1.1"
        aggregator = "10.77.0.1:48600"
        secret = "a secret of some length"
        tls_ca = "/etc/sumac/ca.pem"
        tls_cert = "/etc/sumac/cert.pem"
        tls_key = "/etc/sumac/key.pem"
        cpus = [1]
        slots = 128
        elements = 352
        scale = 65536.0
        checksum = false
        paths = 8
        memory_mib = 100
        buffers_mib = 50
        join_timeout_s = 2.5
        seccomp = false
        [control_planes.east]
        address = "east.example:48600"
        secret_file = "/etc/sumac/east.token"
        [[allow]]
        users = ["alice", 1001]
        groups = ["ml"]
        jobs = ["{user}:*"]
        [parameter_host]
        control = "10.77.0.1:48600"
        name = "ph1"
        secret = "another secret of some length"
    "#;
    let config = parse(text).unwrap();
    assert_eq!(config.allow_uids, Some(vec![1000, 1001]));
    assert!(config.default_credential().unwrap().is_some());
    assert_eq!(config.aggregator.as_ref().unwrap().to_string(), "10.77.0.1:48600");
    assert_eq!((config.memory_bytes(), config.buffer_bytes()), (100 << 20, 50 << 20));
}

#[test]
fn routes_are_next_hops_and_vlans() {
    let routes =
        |text: &str| parse(&format!("backend = \"xdp\"\npaths = 2\nroutes = [{text}]")).unwrap().routes;
    let route = |via, vlan| RouteConfig { via, vlan };
    let via = |last| Some(Ipv4Addr::new(10, 0, 0, last));
    let hops = routes("{ via = \"10.0.0.1\" }, { via = \"10.0.0.2\" }");
    assert_eq!(hops, [route(via(1), None), route(via(2), None)]);
    let vlans = routes("{ vlan = 1 }, { via = \"10.0.0.1\", vlan = 4094 }");
    assert_eq!(vlans, [route(None, Some(1)), route(via(1), Some(4094))]);
    assert_eq!(routes(""), []);
}

#[test]
fn errors_name_the_file_and_the_key() {
    let cases = [
        ("unknown key", "sokcet = \"x\"", "sokcet"),
        ("wrong type", "elements = \"many\"", "elements"),
        ("not TOML", "elements =", "elements"),
        ("unknown backend", "backend = \"rdma\"", "backend"),
        ("mode not octal", "socket_mode = \"rw\"", "socket_mode"),
        ("mode too large", "socket_mode = \"7777\"", "socket_mode"),
        ("two secrets", "secret = \"a\"\nsecret_file = \"b\"", "secret"),
        ("a certificate without key", "tls_cert = \"a\"", "tls_cert"),
        ("port 0", "base_port = 0", "base_port"),
        ("slots odd", "slots = 3", "slots"),
        ("routes over UDP", "backend = \"udp\"\nroutes = [{ vlan = 7 }]", "routes: are for backend"),
        ("routes, and perhaps UDP", "routes = [{ vlan = 7 }]", "routes: are for backend"),
        ("an empty route", "backend = \"xdp\"\nroutes = [{ vlan = 7 }, {}]", "entry 2 names neither"),
        ("a route by name", "backend = \"xdp\"\nroutes = [{ via = \"spine\" }]", "via"),
        ("no VLAN", "backend = \"xdp\"\nroutes = [{ vlan = 4095 }]", "VLAN 4095"),
        ("one tag of two", "backend = \"xdp\"\nroutes = [{ via = \"10.0.0.1\" }, { vlan = 1 }]", "or none"),
        (
            "more routes than paths",
            "backend = \"xdp\"\npaths = 1\nroutes = [{ vlan = 1 }, { vlan = 2 }]",
            "raise `paths`",
        ),
        ("no elements", "elements = 0", "elements"),
        ("too many elements", "elements = 2225", "elements"),
        ("scale 0", "scale = 0.0", "scale"),
        ("scale not a number", "scale = nan", "scale"),
        ("negative timeout", "join_timeout_s = -1.0", "join_timeout_s"),
        ("endless timeout", "join_timeout_s = inf", "join_timeout_s"),
        ("no queue", "queues = []", "queues"),
        ("a queue twice", "queues = [1, 1]", "queues"),
        ("an aggregator without port", "aggregator = \"10.77.0.1\"", "aggregator"),
        ("a control plane without address", "[control_planes.a]\nsecret = \"x\"", "address"),
        ("one named like an address", "[control_planes.\"a:1\"]\naddress = \"a:1\"", "control_planes"),
        (
            "one with two secrets",
            "[control_planes.a]\naddress = \"a:1\"\nsecret = \"a\"\nsecret_file = \"b\"",
            "control_planes",
        ),
        ("a rule for nobody", "[[allow]]\njobs = [\"*\"]", "allow: rule 1"),
        ("a rule for no job", "[[allow]]\nusers = [1]\njobs = []", "allow: rule 1"),
        ("a rule without jobs", "[[allow]]\nusers = [1]", "jobs"),
        ("a pattern that is none", "[[allow]]\nusers = [1]\njobs = [\"a[\"]", "\"a[\" is no pattern"),
        (
            "a pattern that lets `ml` open the jobs of `ml-ops`",
            "[[allow]]\nusers = [1]\njobs = [\"{user}-*\"]",
            "begins with `{user}:`",
        ),
        ("an unknown key of a rule", "[[allow]]\nusers = [1]\njob = \"a\"", "job"),
        ("a parameter host of nobody", "[parameter_host]\nsecret = \"s\"", "parameter_host"),
        ("one without secret", "[parameter_host]\ncontrol = \"10.77.0.1:48600\"", "parameter_host"),
        (
            "one with two",
            "aggregator = \"10.77.0.1:1\"\n[parameter_host]\nsecret = \"a\"\nsecret_file = \"b\"",
            "parameter_host",
        ),
        ("an unknown key of it", "[parameter_host]\nport = 1", "port"),
    ];
    for (name, text, key) in cases {
        let message = parse(text).unwrap_err().to_string();
        assert!(message.contains("/etc/sumac/daemon.toml"), "{name}: {message}");
        assert!(message.contains(key), "{name}: {message}");
    }
}

#[test]
fn a_file_with_a_secret_in_it_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;

    let file = std::env::temp_dir().join(format!("sumac-config-{}", std::process::id()));
    let with_mode = |text: &str, mode| {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        Config::load(&file)
    };
    let inline = "secret = \"a secret of some length\"";
    let refused = with_mode(inline, 0o644).unwrap_err().to_string();
    assert!(refused.contains(&format!("chmod 600 {}", file.display())), "{refused}");
    assert!(with_mode(inline, 0o600).is_ok());
    assert!(with_mode("secret_file = \"/etc/sumac/token\"", 0o644).is_ok(), "it has only the file's name");
    std::fs::remove_file(&file).unwrap();
}
