# SPDX-License-Identifier: GPL-2.0-or-later
# What an administrator types on a new Debian with three old repositories; run by systemd there, and never elsewhere.
set -ex
test -e /trial/root

: install
dpkg -i /trial/vcsreplicator_*.deb
test "$(readlink -f /usr/bin/vcsreplicator)" = /opt/vcsreplicator/bin/vcsreplicator
useradd --create-home --home-dir /srv/dana dana
for name in one two three; do
    sudo -u dana env HGRCPATH= /opt/vcsreplicator/bin/hg init "/srv/dana/$name"
done
mkdir /repos
mv /srv/dana/one /srv/dana/two /srv/dana/three /repos

: setup
vcsreplicator setup --yes --fix --url https://hg.example/ --developer dana
test ! -e /etc/systemd/system/vcsreplicator-relay.service
systemd-analyze verify /usr/lib/systemd/system/vcsreplicator-*.service /etc/systemd/system/vcsreplicator-*.service

notices=/var/lib/vcsreplicator/notices.jsonl
push() { # TEXT: as dana, until its notice is there and `check` is content
    sudo -u dana sh -c "echo $1 > /srv/dana/first/file"
    sudo -u dana /usr/local/bin/hg -R /srv/dana/first commit -A -m "$1" -u dana
    sudo -u dana /usr/local/bin/hg -R /srv/dana/first push
    node=$(sudo -u dana /usr/local/bin/hg -R /srv/dana/first log -r . -T '{node}')
    for second in $(seq 60); do grep -q "$node" $notices && break || sleep 1; done
    grep "$node" $notices
    for second in $(seq 90); do sudo -u hg vcsreplicator check && break || sleep 1; done
    sudo -u hg vcsreplicator check
}
list_running() { systemctl list-units --plain --no-legend --state=running 'vcsreplicator-*.service' | cut -d ' ' -f 1; }

: push
sudo -u hg /usr/local/bin/hg init /repos/first
sudo -u dana /usr/local/bin/hg clone /repos/first /srv/dana/first
push first

: upgrade
list_running > /trial/before
find /etc -path '*vcsreplicator*' -type f ! -name setup.json -exec sha256sum {} + > /trial/kept
sha256sum /etc/mercurial/*.hgrc /usr/local/bin/hg >> /trial/kept
dpkg -i /trial/next.deb
sha256sum --quiet -c /trial/kept
list_running | cmp - /trial/before
for unit in $(cat /trial/before); do
    echo "started $(systemctl show --value -p ExecMainStartTimestampMonotonic "$unit") $unit"
done
push second
vcsreplicator setup --yes

: remove
dpkg -r vcsreplicator
test -z "$(list_running)"
test -z "$(find /etc/systemd/system -name 'vcsreplicator-*' -type l)"
test ! -e /opt/vcsreplicator
sha256sum --quiet -c /trial/kept
test -d /repos/first/.hg && test -d /srv/alpha/first/.hg && test -s $notices

: again
dpkg -i /trial/next.deb
vcsreplicator setup --yes
push third

: purge
dpkg -P vcsreplicator
test -d /repos/first/.hg && test -s $notices && test -e /etc/vcsreplicator.toml
