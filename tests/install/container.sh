# SPDX-License-Identifier: Apache-2.0
# In a bare system: what deploy/container/Dockerfile runs to build, and one answer through what it copies into the image
# (tests/install/root.sh). The sources are those of scripts/dist.sh: no git.
online() {
  mkdir /src
  tar xf kvroute-*.tar.gz -C /src --strip-components 1
  cd /src
  sed -n 's/^RUN //p' deploy/container/Dockerfile >/tmp/steps
  bash -eux /tmp/steps
}

offline() {
  mv /out /opt/kvroute
  mv /usr/lib/*/libzmq.so.5 /usr/lib/*/libuv.so.1 /tmp # not those of the build
  python3 one_answer.py /opt/kvroute/kvroute
}
