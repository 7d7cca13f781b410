# SPDX-License-Identifier: GPL-2.0-or-later
# What an administrator types on a new Debian with 300 old repositories; run by systemd there, and never elsewhere.
# A line "took SECONDS NAMED COMMANDS STEP" for each step: all its seconds, those until `check` named a fault, and what was typed.
set -ex
test -e /trial/root

step() { # NAME: ends the one before
    { set +x; } 2> /dev/null
    [ -z "$step" ] || echo "took $(($(date +%s) - began)) $named $typed $step"
    step=$1 began=$(date +%s) named=- typed=0
    set -x
}
enter() { typed=$((typed + 1)) && "$@"; } # what an administrator types
as_hg() { sudo -u hg vcsreplicator "$@"; }
until_check() { # TEXT: which `check` says, at most 150 seconds later
    for second in $(seq 150); do { as_hg check || true; } | grep "$1" && return || sleep 1; done
    as_hg check
    false
}
find_fault() { enter until_check "$1" && named=$(($(date +%s) - began)); }

notices=/var/lib/vcsreplicator/notices.jsonl
clone() { enter sudo -u dana /usr/local/bin/hg clone -q "/repos/$1" "/srv/dana/$1"; }
push() { # REPOSITORY TEXT: as dana
    sudo -u dana sh -c "echo $2 > /srv/dana/$1/file"
    enter sudo -u dana /usr/local/bin/hg -R "/srv/dana/$1" commit -A -m "$2" -u dana
    enter sudo -u dana /usr/local/bin/hg -R "/srv/dana/$1" push
}
announce() { # REPOSITORY TEXT: pushes, until the notice is there
    push "$1" "$2"
    node=$(sudo -u dana /usr/local/bin/hg -R "/srv/dana/$1" log -r . -T '{node}')
    for second in $(seq 60); do grep -q "$node" $notices && break || sleep 1; done
    grep "$node" $notices
}
list_running() { systemctl list-units --plain --no-legend --state=running 'vcsreplicator-*.service' | cut -d ' ' -f 1; }

step "install the package"
enter dpkg -i /trial/vcsreplicator_*.deb
test "$(readlink -f /usr/bin/vcsreplicator)" = /opt/vcsreplicator/bin/vcsreplicator

step ""
useradd --create-home --home-dir /srv/dana dana
export HGRCPATH=
for change in 1 2 3; do
    [ -e /srv/old ] || /opt/vcsreplicator/bin/hg init /srv/old
    echo $change > /srv/old/file
    /opt/vcsreplicator/bin/hg -R /srv/old commit -q -A -m "change $change" -u dana
done
unset HGRCPATH
mkdir /repos /srv/alpha
{ set +x; } 2> /dev/null
for number in $(seq 100); do cp -r /srv/old "/repos/old$number"; done
for number in $(seq 200); do cp -r /srv/old "/repos/dana$number" && chown -R dana: "/repos/dana$number"; done
set -x
mount -t tmpfs -o size=200m tmpfs /srv/alpha # a disk that can be filled

step "set up with 300 repositories, 200 of them a developer's"
enter vcsreplicator setup --yes --fix --url https://hg.example/ --developer dana
test ! -e /etc/systemd/system/vcsreplicator-relay.service
systemd-analyze verify /usr/lib/systemd/system/vcsreplicator-*.service /etc/systemd/system/vcsreplicator-*.service

step "first push and first notice"
clone dana1
announce dana1 first
enter until_check ^OK

step "first webhook"
cat > /srv/endpoint.py <<'END'
import http.server, pathlib
class Endpoint(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        pathlib.Path("/srv/received").write_bytes(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 7000), Endpoint).serve_forever()
END
systemd-run --quiet python3 /srv/endpoint.py
enter vcsreplicator setup --yes --destination jsonlines --destination webhook
# Only because this endpoint is no public one.
sed -i '/^type = "webhook"/a allow = ["127.0.0.0/8"]\nallow-http = true' /etc/vcsreplicator.toml
enter systemctl restart vcsreplicator-notifier
enter as_hg subscription add ci http://127.0.0.1:7000/
push dana1 hooked
for second in $(seq 60); do [ -s /srv/received ] && break || sleep 1; done
grep dana1 /srv/received

step "second mirror on the same machine"
enter install -d -o hg -g hg /srv/beta
enter tee -a /etc/vcsreplicator.toml <<'END'
mirror-beta = "127.0.0.1:9112"
verify-beta = "127.0.0.1:9118"
[mirror.beta]
root = "/srv/beta"
master = "http://127.0.0.1:8000/"
END
for kind in mirror verify; do
    # As `systemctl edit`, which asks a person.
    mkdir "/etc/systemd/system/vcsreplicator-$kind@beta.service.d"
    enter tee "/etc/systemd/system/vcsreplicator-$kind@beta.service.d/override.conf" <<'END'
[Service]
ReadWritePaths=/srv/beta
END
done
systemctl daemon-reload
enter as_hg bootstrap beta
enter systemctl enable --now vcsreplicator-mirror@beta vcsreplicator-verify@beta
enter until_check '^OK.* 2 mirrors'
for second in $(seq 60); do [ -d /srv/beta/dana200/.hg ] && break || sleep 1; done
test -d /srv/beta/dana200/.hg

step "fault: stopped relay"
systemctl stop vcsreplicator-relay
push dana1 kept
typed=0
find_fault 'systemctl start vcsreplicator-relay'
enter systemctl start vcsreplicator-relay
enter until_check ^OK

step "fault: full disk of a mirror"
dd if=/dev/zero of=/srv/alpha/filler bs=64k 2> /dev/null || true
push dana1 full
typed=0
find_fault 'alpha.*No space left'
enter rm /srv/alpha/filler
enter until_check ^OK

step "fault: broken repository of a mirror, which heals itself"
truncate -s 50 /srv/alpha/dana1/.hg/store/00changelog.i
push dana1 broken
typed=0
enter as_hg verify alpha -r dana1 # waits until the mirror has the push
enter until_check ^OK

step "fault: repository restored from an older backup"
cp -a /repos/dana1 /srv/backup
push dana1 lost
until_check ^OK
began=$(date +%s)
rm -r /repos/dana1 && mv /srv/backup /repos/dana1
! push dana1 refused
typed=0
find_fault 'dana1: refuses pushes.*replicateadopt'
enter sudo -u hg /usr/local/bin/hg -R /repos/dana1 replicateadopt --yes
enter sudo -u dana /usr/local/bin/hg -R /srv/dana/dana1 push # what the backup lacked
enter until_check ^OK

step "fault: repository removed by hand"
rm -r /repos/old7
find_fault 'WARNING.*forget old7'
enter as_hg forget old7 --yes
enter until_check ^OK
test ! -e /srv/alpha/old7

step "upgrade"
list_running > /trial/before
find /etc -path '*vcsreplicator*' -type f ! -name setup.json -exec sha256sum {} + > /trial/kept
sha256sum /etc/mercurial/*.hgrc /usr/local/bin/hg >> /trial/kept
enter dpkg -i /trial/next.deb
sha256sum --quiet -c /trial/kept
list_running | cmp - /trial/before
for unit in $(cat /trial/before); do
    echo "started $(systemctl show --value -p ExecMainStartTimestampMonotonic "$unit") $unit"
done
announce dana1 upgraded
enter vcsreplicator setup --yes
enter until_check ^OK

step "remove the package; all data stay"
enter dpkg -r vcsreplicator
test -z "$(list_running)"
test -z "$(find /etc/systemd/system -name 'vcsreplicator-*' -type l)"
test ! -e /opt/vcsreplicator
sha256sum --quiet -c /trial/kept
test -d /repos/dana200/.hg && test -d /srv/alpha/dana200/.hg && test -s $notices

step "install and set up again"
enter dpkg -i /trial/next.deb
enter vcsreplicator setup --yes
enter systemctl enable --now vcsreplicator-mirror@beta vcsreplicator-verify@beta # which setup does not know
announce dana1 again

step "purge; all data stay"
enter dpkg -P vcsreplicator
test -d /repos/dana1/.hg && test -s $notices && test -e /etc/vcsreplicator.toml
step ""
