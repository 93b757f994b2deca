"""Small hand-written files in the layouts of NCCL and nvidia-smi."""

DUMP = """<system version="1">
  <cpu numaid="0" affinity="0000ffff,0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="1" gdr="1">
          <nvlink target="0000:f0:00.0" count="9" tclass="0x068000"/>
          <nvlink target="0000:f1:00.0" count="9" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ffff0000,ffff0000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:20:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="8">
      <gpu dev="0" sm="90" rank="0" gdr="1">
        <nvlink target="0000:f0:00.0" count="9" tclass="0x068000"/>
        <nvlink target="0000:f1:00.0" count="9" tclass="0x068000"/>
      </gpu>
    </pci>
  </cpu>
</system>
"""
MESH = """<!-- two bridged cards -->
<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1" affinity="ff">
  <pci busid="0000:01:00.0" class="0x030000" vendor="0x10de" device="0x2204" link_speed="16.0 GT/s PCIe" link_width="16">
    <gpu dev="0" sm="86"><nvlink target="0000:02:00.0" count="4" tclass="0x030000"/></gpu></pci>
  <pci busid="0000:02:00.0" class="0x030000" vendor="0x10de" device="0x2204" link_speed="16.0 GT/s PCIe" link_width="16">
    <gpu dev="1" sm="86"><nvlink target="0000:01:00.0" count="4" tclass="0x030000"/></gpu></pci>
  <pci busid="0000:03:00.0" class="0x010802"/>
  <nic><net name="eth0" dev="0" speed="10000"/></nic>
</cpu></system>"""
GRAPHS = """<graphs version="1"><graph id="0" pattern="4" nchannels="2" speedintra="12" typeintra="PHB" typeinter="PIX">
<channel><gpu dev="0"/><gpu dev="1"/></channel><channel><gpu dev="1"/><gpu dev="0"/></channel></graph></graphs>"""
MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tPIX\tSYS\tPIX\tNODE\t0-15,32-47\t0\t\tN/A\n"
    "GPU1\tPIX\t X \tSYS\tPIX\tNODE\t0-15,32-47\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tSYS\tSYS\t16-31,48-63\t1\t\tN/A\n"
    "NIC0\tPIX\tPIX\tSYS\t X \tNODE\t\t\t\t\n"
    "NIC1\tNODE\tNODE\tSYS\tNODE\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  SYS  = far\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_bond_0\n"
)
OLD = """        GPU0    GPU1    mlx4_0  CPU Affinity
GPU0     X      NV2     SOC     0-7
GPU1    NV2      X      PHB     8-15
mlx4_0  SOC     PHB      X

Legend:

  X   = Self
  SOC  = Connection traversing PCIe as well as the SMP link between CPU sockets
"""
PEERS = "      GPU0  GPU1\nGPU0  X     NS\nGPU1  NS    X\n"
