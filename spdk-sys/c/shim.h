/*
 * What Rust cannot call as it is: inline functions, bit fields, structs that grow between
 * releases and va_list. No policy: each function does one thing of SPDK's.
 */
#ifndef MILLRACE_SPDK_SHIM_H
#define MILLRACE_SPDK_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spdk/config.h"
#include "spdk/env.h"
#include "spdk/log.h"
#include "spdk/nvme.h"
#include "spdk/version.h"

/* Environment options that a caller may set; NULL and 0 leave SPDK's defaults. */
struct shim_env_opts {
	const char *name;
	/* SPDK takes a string that starts with '-' for literal EAL arguments. */
	const char *core_mask;
	/* "pa", "va" or NULL: SPDK looks at the IOMMU. */
	const char *iova_mode;
	/* More EAL arguments, separated by spaces. */
	const char *eal_arguments;
	/* The only PCI functions that DPDK may touch. */
	struct spdk_pci_addr *allowed;
	size_t allowed_count;
};

/* spdk_env_init(): 0 or a negative errno. */
int shim_env_init(const struct shim_env_opts *opts);

/* Gets one whole log line without its line end. dpdk: it is of DPDK, level is DPDK's. */
typedef void shim_log_line(bool dpdk, int level, const char *text, size_t len);

/* Routes SPDK's and DPDK's log lines. Call before shim_env_init. 0 or a negative errno. */
int shim_log_open(shim_log_line *line);

/* Folder that DPDK has made for files that it shares: empty here. */
const char *shim_runtime_dir(void);

struct shim_ctrlr_opts {
	uint32_t io_queue_size;
	uint32_t keep_alive_timeout_ms;
	uint32_t admin_timeout_ms;
	/* Bound for the whole: SPDK has none for a controller whose CAP.TO is 0. */
	uint32_t attach_timeout_ms;
	bool error_logging;
};

/* Attaches a controller: NULL on failure, with log lines. */
struct spdk_nvme_ctrlr *shim_connect(const struct spdk_nvme_transport_id *trid,
				     const struct shim_ctrlr_opts *opts);

struct shim_identity {
	/* Not terminated: blanks fill them, as in the identify data. */
	char serial[20];
	char model[40];
	char firmware[8];
	/* CAP.MQES as SPDK uses it: the largest I/O queue. */
	uint32_t io_queue_size;
	/* Bytes, from MDTS and the transport. */
	uint32_t max_transfer;
	/* NUMA node, or -1. */
	int32_t node;
	/* Whether keep-alive and volatile write cache are there. */
	bool keep_alive;
	bool write_cache;
};

void shim_identify(struct spdk_nvme_ctrlr *ctrlr, struct shim_identity *out);

/* CSTS; 0xFFFFFFFF where the register cannot be read. */
uint32_t shim_csts(struct spdk_nvme_ctrlr *ctrlr);

/* CSTS.RDY and CSTS.CFS of a value of CSTS. */
bool shim_csts_ready(uint32_t csts);
bool shim_csts_fatal(uint32_t csts);

/* An I/O queue pair, connected; NULL on failure. */
struct spdk_nvme_qpair *shim_alloc_qpair(struct spdk_nvme_ctrlr *ctrlr, uint32_t queue_size,
					 uint32_t requests, bool delay_submit);

/* True once the PCI function is gone. False for other transports. */
bool shim_pci_removed(struct spdk_nvme_ctrlr *ctrlr);

/* Looks for hot-plug events of attached PCI controllers. */
int shim_scan_attached(void);

#endif
