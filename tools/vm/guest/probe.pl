# What the process may do: prints each attempt with `allowed` or `denied`. All but the first group need what the
# sandbox of Sumac's units takes away. System calls are those of x86-64.
use strict;
my $folder = $ARGV[0];

sub writes { my $file = shift; open(my $opened, '>', $file) or return 0; close $opened; return unlink $file; }
sub calls { my ($number, @rest) = @_; return syscall($number, @rest) >= 0; }

my $own = (-e "/sys/fs/bpf/sumac") ? 1 : 0;
my @attempts = (
    ["write own folder", sub { writes("$folder/file") }],
    ["write /tmp", sub { writes("/tmp/probe.file") }],
    ["see own pins", sub { $own }],

    # These folders are the user's: only the sandbox is in the way.
    ["write /etc", sub { writes("/etc/probe/file") }],
    ["write /usr", sub { writes("/usr/probe/file") }],
    ["write /var/lib", sub { writes("/var/lib/probe/file") }],
    ["write /home", sub { writes("/home/probe/file") }],
    ["write /proc/sys", sub { open(my $opened, '>>', "/proc/sys/net/ipv4/ip_forward") }],
    ["see the disk", sub { -e "/dev/vda" }],
    ["see the host's /tmp", sub { -e "/tmp/of-the-host" }],
    ["see others' pins", sub { -e "/sys/fs/bpf/others" }],
    # AF_ALG, which needs no capability.
    ["other sockets", sub { socket(my $socket, 38, 5, 0) }],
    ["setuid file", sub { open(my $opened, '>', "/tmp/setuid"); my $is_set = chmod 04755, "/tmp/setuid";
        unlink "/tmp/setuid"; $is_set }],
    ["writable code", sub { calls(9, 0, 4096, 7, 0x22, -1, 0) }],
    ["mount", sub { my ($none, $on, $type) = ("none", "/mnt", "tmpfs");
        calls(165, $none, $on, $type, 0, 0) && calls(166, $on, 0) }],
    ["host name", sub { my $name = "vm"; calls(170, $name, 2) }],
    ["change of user", sub { calls(105, $<) }],
    ["keyring", sub { calls(250, 0, -3, 1) }],
    ["name space", sub { calls(272, 0x04000000) }],
);
for my $attempt (@attempts) {
    my ($name, $does) = @$attempt;
    print "$name ", ($does->() ? "allowed" : "denied"), "\n";
}
open(my $status, '<', "/proc/self/status");
print grep { /^Seccomp_filters/ } <$status>;
