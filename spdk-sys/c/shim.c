#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Of DPDK's headers, whose folder is not on the include path everywhere. All are stable ABI. */
extern const char *rte_eal_get_runtime_dir(void);
extern int rte_openlog_stream(FILE *f);
extern int rte_log_cur_msg_loglevel(void);

int
shim_env_init(const struct shim_env_opts *o)
{
	struct spdk_env_opts opts;

	memset(&opts, 0, sizeof(opts));
	/* Before the call since 24.05; older releases have no such field. */
#if SPDK_VERSION >= SPDK_VERSION_NUM(24, 5, 0)
	opts.opts_size = sizeof(opts);
#endif
	spdk_env_opts_init(&opts);
	opts.name = o->name;
	opts.core_mask = o->core_mask;
	if (o->iova_mode != NULL) {
		opts.iova_mode = o->iova_mode;
	}
	/* SPDK only reads it. */
	opts.env_context = (void *)o->eal_arguments;
	/* One process: no shared configuration files. */
	opts.shm_id = -1;
	/*
	 * vfio-user hands the target one file descriptor for an allocation; with a file for each
	 * hugepage that would be the first page's only, and the target would write elsewhere.
	 */
	opts.hugepage_single_segments = true;
	opts.pci_allowed = o->allowed;
	opts.num_pci_addr = o->allowed_count;
	return spdk_env_init(&opts);
}

const char *
shim_runtime_dir(void)
{
	return rte_eal_get_runtime_dir();
}

static shim_log_line *g_line;

static void
emit(bool dpdk, int level, const char *text, size_t len)
{
	while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r' || text[len - 1] == ' ')) {
		len--;
	}
	if (len > 0 && g_line != NULL) {
		g_line(dpdk, level, text, len);
	}
}

static void
spdk_line(int level, const char *file, const int line, const char *func, const char *format,
	  va_list args)
{
	char text[1024];
	int len = vsnprintf(text, sizeof(text), format, args);

	(void)file;
	(void)line;
	(void)func;
	if (len > 0) {
		emit(false, level, text, (size_t)len < sizeof(text) ? (size_t)len : sizeof(text) - 1);
	}
}

static ssize_t
dpdk_write(void *cookie, const char *text, size_t len)
{
	const char *at = text, *end = text + len;

	(void)cookie;
	while (at < end) {
		const char *stop = memchr(at, '\n', (size_t)(end - at));

		stop = stop != NULL ? stop : end;
		emit(true, rte_log_cur_msg_loglevel(), at, (size_t)(stop - at));
		at = stop + 1;
	}
	return (ssize_t)len;
}

int
shim_log_open(shim_log_line *line)
{
	cookie_io_functions_t functions = { .write = dpdk_write };
	FILE *stream = fopencookie(NULL, "w", functions);

	if (stream == NULL) {
		return -errno;
	}
	/* Line by line: rte_log's level is that of the line being written. */
	if (setvbuf(stream, NULL, _IOLBF, 1024) != 0 || rte_openlog_stream(stream) != 0) {
		fclose(stream);
		return -EINVAL;
	}
	g_line = line;
	spdk_log_open(spdk_line);
	/* A logger gets what the print level lets through to standard error otherwise. */
	spdk_log_set_level(SPDK_LOG_NOTICE);
	spdk_log_set_print_level(SPDK_LOG_NOTICE);
	return 0;
}

/* The options come first: SPDK hands their address to the callback. */
struct connecting {
	struct spdk_nvme_ctrlr_opts opts;
	struct spdk_nvme_ctrlr *ctrlr;
};

static void
attached(void *ctx, const struct spdk_nvme_transport_id *trid, struct spdk_nvme_ctrlr *ctrlr,
	 const struct spdk_nvme_ctrlr_opts *opts)
{
	((struct connecting *)ctx)->ctrlr = ctrlr;
}

struct spdk_nvme_ctrlr *
shim_connect(const struct spdk_nvme_transport_id *trid, const struct shim_ctrlr_opts *o)
{
	struct connecting *c = calloc(1, sizeof(*c));
	struct spdk_nvme_probe_ctx *probe;
	struct spdk_nvme_ctrlr *ctrlr;
	uint64_t end;

	if (c == NULL) {
		return NULL;
	}
	spdk_nvme_ctrlr_get_default_ctrlr_opts(&c->opts, sizeof(c->opts));
	c->opts.io_queue_size = o->io_queue_size;
	c->opts.keep_alive_timeout_ms = o->keep_alive_timeout_ms;
	c->opts.admin_timeout_ms = o->admin_timeout_ms;
	c->opts.disable_error_logging = !o->error_logging;
	probe = spdk_nvme_connect_async(trid, &c->opts, attached);
	if (probe == NULL) {
		free(c);
		return NULL;
	}
	end = spdk_get_ticks() + o->attach_timeout_ms * spdk_get_ticks_hz() / 1000;
	while (spdk_nvme_probe_poll_async(probe) == -EAGAIN) {
		if (spdk_get_ticks() >= end) {
			/* SPDK cannot be made to give up: what it still names stays. */
			SPDK_ERRLOG("the controller was not ready within %u ms\n", o->attach_timeout_ms);
			return NULL;
		}
	}
	ctrlr = c->ctrlr;
	free(c);
	return ctrlr;
}

void
shim_identify(struct spdk_nvme_ctrlr *ctrlr, struct shim_identity *out)
{
	const struct spdk_nvme_ctrlr_data *data = spdk_nvme_ctrlr_get_data(ctrlr);
	struct spdk_pci_device *pci = spdk_nvme_ctrlr_get_pci_device(ctrlr);

	SPDK_STATIC_ASSERT(sizeof(data->sn) == sizeof(out->serial), "serial number");
	SPDK_STATIC_ASSERT(sizeof(data->mn) == sizeof(out->model), "model number");
	SPDK_STATIC_ASSERT(sizeof(data->fr) == sizeof(out->firmware), "firmware revision");
	memset(out, 0, sizeof(*out));
	memcpy(out->serial, data->sn, sizeof(out->serial));
	memcpy(out->model, data->mn, sizeof(out->model));
	memcpy(out->firmware, data->fr, sizeof(out->firmware));
	out->io_queue_size = spdk_nvme_ctrlr_get_opts(ctrlr)->io_queue_size;
	out->max_transfer = spdk_nvme_ctrlr_get_max_xfer_size(ctrlr);
	out->keep_alive = data->kas != 0;
	out->write_cache = data->vwc.present;
	out->node = -1;
	if (pci != NULL) {
#if SPDK_VERSION >= SPDK_VERSION_NUM(24, 9, 0)
		out->node = spdk_pci_device_get_numa_id(pci);
#else
		out->node = spdk_pci_device_get_socket_id(pci);
#endif
	}
}

uint32_t
shim_csts(struct spdk_nvme_ctrlr *ctrlr)
{
	return spdk_nvme_ctrlr_get_regs_csts(ctrlr).raw;
}

bool
shim_csts_ready(uint32_t csts)
{
	union spdk_nvme_csts_register reg = { .raw = csts };

	return reg.bits.rdy;
}

bool
shim_csts_fatal(uint32_t csts)
{
	union spdk_nvme_csts_register reg = { .raw = csts };

	return reg.bits.cfs;
}

struct spdk_nvme_qpair *
shim_alloc_qpair(struct spdk_nvme_ctrlr *ctrlr, uint32_t queue_size, uint32_t requests,
		 bool delay_submit)
{
	struct spdk_nvme_io_qpair_opts opts;

	spdk_nvme_ctrlr_get_default_io_qpair_opts(ctrlr, &opts, sizeof(opts));
	if (queue_size < opts.io_queue_size) {
		opts.io_queue_size = queue_size;
	}
	opts.io_queue_requests = requests;
	opts.delay_cmd_submit = delay_submit;
	return spdk_nvme_ctrlr_alloc_io_qpair(ctrlr, &opts, sizeof(opts));
}

bool
shim_pci_removed(struct spdk_nvme_ctrlr *ctrlr)
{
	struct spdk_pci_device *pci = spdk_nvme_ctrlr_get_pci_device(ctrlr);

	return pci != NULL && spdk_pci_device_is_removed(pci);
}

int
shim_scan_attached(void)
{
	struct spdk_nvme_transport_id trid;

	memset(&trid, 0, sizeof(trid));
	spdk_nvme_trid_populate_transport(&trid, SPDK_NVME_TRANSPORT_PCIE);
#if SPDK_VERSION >= SPDK_VERSION_NUM(23, 9, 0)
	return spdk_nvme_scan_attached(&trid);
#else
	(void)trid;
	return 0;
#endif
}
