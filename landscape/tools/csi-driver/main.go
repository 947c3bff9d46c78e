// CSI driver of the local cloud on a node. The cloud mounts a disk in the machine's directory of volumes; the driver shows
// it to pods by bind mounts. Disks are made, attached, grown and deleted by provider-local, beside the control plane.
package main

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	// The same name is in activities/provider_local/storage.py.
	name       = "disks.local.provider.extensions.gardener.cloud"
	version    = "1.0.0"
	csiVersion = "1.0.0"
	// After this time without a registration, the driver ends, and is started again with another socket.
	patience = 30 * time.Second
)

// A disk has the name of an object of Kubernetes: no path leads out of the directory of volumes.
var diskName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	node    string
	volumes string
	most    int64
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: name, VendorVersion: version}, nil
}

func (d *driver) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node, MaxVolumesPerNode: d.most}, nil
}

func (d *driver) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	stats := &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
		Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_GET_VOLUME_STATS},
	}}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{stats}}, nil
}

// NodePublishVolume binds the disk to the pod's path. A second call finds the mount of the first one.
func (d *driver) NodePublishVolume(
	_ context.Context, request *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	disk, target := request.GetVolumeId(), request.GetTargetPath()
	if !diskName.MatchString(disk) {
		return nil, status.Errorf(codes.InvalidArgument, "volume handle %q is no name of a disk", disk)
	}
	if target == "" || request.GetVolumeCapability().GetMount() == nil {
		return nil, status.Errorf(codes.InvalidArgument, "disk %s: only volumes with a file system are possible", disk)
	}
	source := filepath.Join(d.volumes, disk)
	if attached, err := isMountPoint(source); err != nil || !attached {
		return nil, status.Errorf(codes.Unavailable, "disk %s is not attached to this machine yet", disk)
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return nil, status.Errorf(codes.Internal, "disk %s: making the directory of the pod: %v", disk, err)
	}
	published, err := isMountPoint(target)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "disk %s: reading the directory of the pod: %v", disk, err)
	}
	if !published {
		if err := syscall.Mount(source, target, "", syscall.MS_BIND, ""); err != nil {
			return nil, status.Errorf(codes.Internal, "disk %s: mounting for the pod: %v", disk, err)
		}
	}
	if request.GetReadonly() {
		flags := uintptr(syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY | syscall.MS_NODEV)
		if err := syscall.Mount("", target, "", flags, ""); err != nil {
			return nil, status.Errorf(codes.Internal, "disk %s: mounting read-only: %v", disk, err)
		}
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume removes the mount and the pod's directory. A second call finds nothing to remove.
func (d *driver) NodeUnpublishVolume(
	_ context.Context, request *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	target := request.GetTargetPath()
	if target == "" {
		return nil, status.Error(codes.InvalidArgument, "no target path")
	}
	for {
		published, err := isMountPoint(target)
		if errors.Is(err, fs.ErrNotExist) {
			return &csi.NodeUnpublishVolumeResponse{}, nil
		}
		if err != nil {
			return nil, status.Errorf(codes.Internal, "reading %s: %v", target, err)
		}
		if !published {
			break
		}
		if err := syscall.Unmount(target, 0); err != nil {
			return nil, status.Errorf(codes.Internal, "unmounting %s: %v", target, err)
		}
	}
	// Not RemoveAll: nothing of a disk may be deleted, whatever is wrong here.
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, status.Errorf(codes.Internal, "removing %s: %v", target, err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (d *driver) NodeGetVolumeStats(
	_ context.Context, request *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	var found syscall.Statfs_t
	if err := syscall.Statfs(request.GetVolumePath(), &found); err != nil {
		return nil, status.Errorf(codes.NotFound, "reading %s: %v", request.GetVolumePath(), err)
	}
	size := int64(found.Bsize)
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{
			Unit:      csi.VolumeUsage_BYTES,
			Total:     int64(found.Blocks) * size,
			Available: int64(found.Bavail) * size,
			Used:      int64(found.Blocks-found.Bfree) * size,
		},
		{
			Unit:      csi.VolumeUsage_INODES,
			Total:     int64(found.Files),
			Available: int64(found.Ffree),
			Used:      int64(found.Files - found.Ffree),
		},
	}}, nil
}

// isMountPoint compares devices: a disk is a file system of its own.
func isMountPoint(path string) (bool, error) {
	var own, parent syscall.Stat_t
	if err := syscall.Stat(path, &own); err != nil {
		return false, err
	}
	if err := syscall.Stat(filepath.Dir(path), &parent); err != nil {
		return false, err
	}
	return own.Dev != parent.Dev, nil
}

// registrar tells the kubelet of the driver.
type registrar struct {
	registration.UnimplementedRegistrationServer
	endpoint string

	lock   sync.Mutex
	giveUp *time.Timer
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: name, Endpoint: r.endpoint, SupportedVersions: []string{csiVersion},
	}, nil
}

func (r *registrar) NotifyRegistrationStatus(
	_ context.Context, result *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if !result.GetPluginRegistered() {
		// The kubelet tries again by itself: to end at once would cost the seconds of the container's back-off.
		log.Printf("the kubelet has not registered the driver: %s", result.GetError())
		if r.giveUp == nil {
			r.giveUp = time.AfterFunc(patience, func() { log.Fatalf("not registered within %s", patience) })
		}
		return &registration.RegistrationStatusResponse{}, nil
	}
	log.Print("the kubelet has registered the driver")
	if r.giveUp != nil {
		r.giveUp.Stop()
		r.giveUp = nil
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func serve(socket string, server *grpc.Server) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}

func main() {
	node := flag.String("node", os.Getenv("NODE_NAME"), "name of the node, which is that of its machine")
	plugin := flag.String("plugin", "/var/lib/kubelet/plugins/"+name, "directory of the driver's socket")
	registry := flag.String("registry", "/var/lib/kubelet/plugins_registry", "directory in which the kubelet finds drivers")
	volumes := flag.String("volumes", "/var/lib/volumes", "directory in which the cloud mounts disks")
	most := flag.Int64("max-volumes", 16, "most disks that the cloud attaches to a machine")
	flag.Parse()

	endpoint := filepath.Join(*plugin, "csi.sock")
	served := &driver{node: *node, volumes: *volumes, most: *most}
	disks, register := grpc.NewServer(), grpc.NewServer()
	csi.RegisterIdentityServer(disks, served)
	csi.RegisterNodeServer(disks, served)
	registration.RegisterRegistrationServer(register, &registrar{endpoint: endpoint})

	go serve(endpoint, disks)
	go serve(filepath.Join(*registry, name+"-reg.sock"), register)
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, syscall.SIGTERM, syscall.SIGINT)
	<-stopped
	register.Stop()
	disks.Stop()
}
