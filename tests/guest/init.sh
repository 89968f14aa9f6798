#!/bin/sh
# The first process of the guest: devices up, then the job of the host, then power off.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t tmpfs shm /dev/shm
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose repository /repository
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 exchange /exchange
ip link set lo up
for module in crc32_generic crc32c_generic rdma_rxe ib_uverbs rdma_ucm veth sch_netem; do
  modprobe $module || echo "no module $module"
done
modprobe dummy numdummies=0
ip link add eth0 type dummy
ip addr add 10.77.0.1/24 dev eth0
ip link set eth0 up
rdma link add rxe0 type rxe netdev eth0
cd /repository
sh /exchange/job.sh >/exchange/output 2>&1
echo $? >/exchange/rc
sync
echo o >/proc/sysrq-trigger
sleep 60
